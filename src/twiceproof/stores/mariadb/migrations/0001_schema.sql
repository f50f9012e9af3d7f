-- MariaDB commits each of these statements by itself, and several processes may run them at once: each can be run again.
--
-- Records, one row each. `id` grows with time and is the scan's cursor; the readable address has its own index. VARBINARY:
-- keys are compared byte by byte, with their case, accents and trailing blanks, and the longest address fits into an index
-- entry (2,488 of 3,072 bytes). `checks` is written by a Check where nodes compare write sets instead of locks (Galera).
CREATE TABLE IF NOT EXISTS {ledger}.twiceproof_records (
    id          BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    version     BIGINT NOT NULL,
    fence       BIGINT NOT NULL,
    created_at  DOUBLE NOT NULL,
    updated_at  DOUBLE NOT NULL,
    lease_until DOUBLE,
    due_at      DOUBLE,
    checks      INT UNSIGNED NOT NULL DEFAULT 0,
    space       VARBINARY(1400) NOT NULL,
    kind        VARBINARY(64) NOT NULL,
    `key`       VARBINARY(1024) NOT NULL,
    state       VARBINARY(32) NOT NULL,
    nonce       VARBINARY(128) NOT NULL,
    queue       VARBINARY(256) NOT NULL,
    body        LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    -- When work waits in a queue named `tenant/…`, of which there may be many thousands. Those of retention have no slash.
    work_at     DOUBLE AS (CASE WHEN LOCATE('/', queue) > 0 THEN due_at END) PERSISTENT,
    -- The flow of a run: the first two parts of its space.
    family      VARBINARY(300) AS (CASE WHEN kind = 'run' THEN SUBSTRING_INDEX(space, '/', 2) END) PERSISTENT,
    UNIQUE KEY twiceproof_records_at (space, kind, `key`),
    KEY twiceproof_records_state (kind, state, id),
    KEY twiceproof_records_family (family, state, id),
    KEY twiceproof_records_due (kind, queue, due_at),
    KEY twiceproof_records_time (kind, work_at, queue)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What versions and fences are drawn from. It only grows and outlives every record. One step per commit: its batches
-- take the numbers in between, one each. Each new connection brings it up to the server's time, so that a database that
-- was restored from a backup draws no number again. A second has 2^22 numbers since 2020, which keeps it below 2^53 until
-- 2088.
CREATE SEQUENCE IF NOT EXISTS {ledger}.twiceproof_number START WITH 256 INCREMENT BY {step} CACHE 1000 NOCYCLE
    ENGINE=InnoDB;

-- Facts about this database: which server wrote it last, and an identity of its own.
CREATE TABLE IF NOT EXISTS {ledger}.twiceproof_facts (
    name  VARBINARY(64) NOT NULL PRIMARY KEY,
    value VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE=InnoDB;

-- -- views for people -------------------------------------------------------------------------
CREATE OR REPLACE SQL SECURITY INVOKER VIEW {ledger}.twiceproof_claims AS
SELECT
    COALESCE(JSON_VALUE(body, '$.tenant'), 'default')      AS tenant,
    JSON_VALUE(body, '$.operation')                        AS operation,
    JSON_VALUE(body, '$.key')                              AS `key`,
    CONVERT(state USING utf8mb4)                           AS state,
    JSON_VALUE(body, '$.owner')                            AS owner,
    COALESCE(CAST(JSON_VALUE(body, '$.attempt') AS INT), 1) AS attempt,
    JSON_VALUE(body, '$.run')                              AS run,
    fence,
    FROM_UNIXTIME(created_at)                              AS created_at,
    FROM_UNIXTIME(updated_at)                              AS updated_at,
    FROM_UNIXTIME(lease_until)                             AS lease_until,
    JSON_EXTRACT(body, '$.result')                         AS result,
    JSON_EXTRACT(body, '$.fault')                          AS fault,
    body
FROM {ledger}.twiceproof_records
WHERE kind IN ('claim', 'run');

CREATE OR REPLACE SQL SECURITY INVOKER VIEW {ledger}.twiceproof_runs AS
SELECT
    JSON_VALUE(body, '$.run')                              AS run,
    COALESCE(JSON_VALUE(body, '$.tenant'), 'default')      AS tenant,
    JSON_VALUE(body, '$.operation')                        AS flow,
    COALESCE(JSON_VALUE(body, '$.work.version'), '1')      AS version,
    JSON_VALUE(body, '$.key')                              AS `key`,
    CONVERT(state USING utf8mb4)                           AS state,
    JSON_VALUE(body, '$.reason')                           AS reason,
    JSON_VALUE(body, '$.owner')                            AS owner,
    COALESCE(CAST(JSON_VALUE(body, '$.attempt') AS INT), 1) AS attempt,
    FROM_UNIXTIME(created_at)                              AS created_at,
    FROM_UNIXTIME(updated_at)                              AS updated_at,
    FROM_UNIXTIME(lease_until)                             AS lease_until,
    CASE WHEN state IN ('held', 'queued', 'waiting') THEN FROM_UNIXTIME(due_at) END AS due_at,
    JSON_EXTRACT(body, '$.work.input')                     AS input,
    JSON_EXTRACT(body, '$.result')                         AS result,
    JSON_EXTRACT(body, '$.fault')                          AS fault
FROM {ledger}.twiceproof_records
WHERE kind = 'run';

CREATE OR REPLACE SQL SECURITY INVOKER VIEW {ledger}.twiceproof_steps AS
SELECT
    JSON_VALUE(c.body, '$.run')                            AS run,
    JSON_VALUE(c.body, '$.operation')                      AS flow,
    JSON_VALUE(c.body, '$.key')                            AS `key`,
    CONVERT(s.`key` USING utf8mb4)                         AS step,
    CONVERT(s.state USING utf8mb4)                         AS state,
    JSON_VALUE(s.body, '$.repeat')                         AS `repeat`,
    COALESCE(CAST(JSON_VALUE(s.body, '$.starts') AS INT), 1) AS starts,
    CAST(JSON_VALUE(s.body, '$.order') AS INT)             AS place,
    FROM_UNIXTIME(s.created_at)                            AS created_at,
    FROM_UNIXTIME(s.updated_at)                            AS updated_at,
    FROM_UNIXTIME(CAST(JSON_VALUE(s.body, '$.not_before') AS DOUBLE)) AS not_before,
    JSON_VALUE(s.body, '$.external')                       AS external,
    JSON_VALUE(s.body, '$.reason')                         AS reason,
    JSON_EXTRACT(s.body, '$.result')                       AS result,
    JSON_EXTRACT(s.body, '$.fault')                        AS fault
FROM {ledger}.twiceproof_records AS s
JOIN {ledger}.twiceproof_records AS c ON c.space = s.space AND c.kind = 'run' AND c.`key` = 'self'
WHERE s.kind = 'step';
