-- Records, one row each. `id` grows with time, so rows are appended and not scattered; the readable
-- address is its own index, and keys that grow (order 1001, 1002, …) are appended there too.
CREATE TABLE twiceproof_records (
    id          INTEGER PRIMARY KEY,
    space       TEXT NOT NULL,
    kind        TEXT NOT NULL,
    key         TEXT NOT NULL,
    state       TEXT NOT NULL,
    version     INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    nonce       TEXT NOT NULL,
    created_at  REAL NOT NULL,
    updated_at  REAL NOT NULL,
    lease_until REAL,
    queue       TEXT NOT NULL,
    due_at      REAL,
    body        TEXT NOT NULL
);

CREATE UNIQUE INDEX twiceproof_records_at ON twiceproof_records (space, kind, key);
CREATE INDEX twiceproof_records_state ON twiceproof_records (kind, state);
CREATE INDEX twiceproof_records_due ON twiceproof_records (kind, queue, due_at) WHERE due_at IS NOT NULL;

-- The number that versions and fences are drawn from. It only grows, and outlives every record.
CREATE TABLE twiceproof_counter (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL
);
INSERT INTO twiceproof_counter (id, number) VALUES (1, 0);

-- Facts about this file: which host wrote it last, for the doctor.
CREATE TABLE twiceproof_facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- For people: the claims, readable with plain SQL.
CREATE VIEW twiceproof_claims AS
SELECT
    coalesce(json_extract(body, '$.tenant'), 'default') AS tenant,
    json_extract(body, '$.operation')          AS operation,
    json_extract(body, '$.key')                AS key,
    state,
    json_extract(body, '$.owner')              AS owner,
    coalesce(json_extract(body, '$.attempt'), 1) AS attempt,
    json_extract(body, '$.run')                AS run,
    fence,
    datetime(created_at, 'unixepoch')          AS created_at,
    datetime(updated_at, 'unixepoch')          AS updated_at,
    datetime(lease_until, 'unixepoch')         AS lease_until,
    json_extract(body, '$.result')             AS result,
    json_extract(body, '$.fault')              AS fault,
    body
FROM twiceproof_records
WHERE kind = 'claim';
