-- Records, one row each. `id` grows with time, so that rows are appended and not scattered; the readable address has its
-- own index, and keys that grow (order 1001, 1002, …) are appended there, too.
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
-- The runs of one flow by age: the first two parts of their space, with both slashes. Queries repeat the expression.
CREATE INDEX twiceproof_records_family ON twiceproof_records
    (substr(space, 1, instr(space, '/') + instr(substr(space, instr(space, '/') + 1), '/')), state) WHERE kind = 'run';
CREATE INDEX twiceproof_records_due ON twiceproof_records (kind, queue, due_at) WHERE due_at IS NOT NULL;
-- Work that waits, by time, whatever its queue: there may be a queue for each of many thousand tenants. Those of retention
-- have no slash, and are left out: finished claims need no second entry, and are not in the way.
CREATE INDEX twiceproof_records_time ON twiceproof_records (kind, due_at, queue)
    WHERE due_at IS NOT NULL AND instr(queue, '/') > 0;

-- The counter that versions and fences are drawn from. It only grows, and outlives every record.
CREATE TABLE twiceproof_counter (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL
);
INSERT INTO twiceproof_counter (id, number) VALUES (1, 0);

-- Facts about this file, for the doctor: which host wrote it last.
CREATE TABLE twiceproof_facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- For people: claims, runs of flows and their steps, readable with plain SQL.
-- The views show every character and every digit. json_extract cuts a text at a NUL and makes a float of 2^63 and above;
-- given one path twice it returns `[x,x]`, JSON as it was stored, from which x is taken. (`->` does the same, but only
-- from SQLite 3.38 on.)
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
    CASE WHEN json_type(body, '$.result') IS NOT NULL THEN substr(json_extract(body, '$.result', '$.result'), 2, (length(json_extract(body, '$.result', '$.result')) - 3) / 2) END AS result,
    json_extract(body, '$.fault')              AS fault,
    body
FROM twiceproof_records
WHERE kind IN ('claim', 'run');

CREATE VIEW twiceproof_runs AS
SELECT
    json_extract(body, '$.run')                          AS run,
    coalesce(json_extract(body, '$.tenant'), 'default')  AS tenant,
    json_extract(body, '$.operation')                    AS flow,
    coalesce(json_extract(body, '$.work.version'), '1')  AS version,
    json_extract(body, '$.key')                          AS key,
    state,
    json_extract(body, '$.reason')                       AS reason,
    json_extract(body, '$.owner')                        AS owner,
    coalesce(json_extract(body, '$.attempt'), 1)         AS attempt,
    datetime(created_at, 'unixepoch')                    AS created_at,
    datetime(updated_at, 'unixepoch')                    AS updated_at,
    datetime(lease_until, 'unixepoch')                   AS lease_until,
    CASE WHEN state IN ('held', 'queued', 'waiting') THEN datetime(due_at, 'unixepoch') END AS due_at,
    CASE WHEN json_type(body, '$.work.input') IS NOT NULL THEN substr(json_extract(body, '$.work.input', '$.work.input'), 2, (length(json_extract(body, '$.work.input', '$.work.input')) - 3) / 2) END AS input,
    CASE WHEN json_type(body, '$.result') IS NOT NULL THEN substr(json_extract(body, '$.result', '$.result'), 2, (length(json_extract(body, '$.result', '$.result')) - 3) / 2) END AS result,
    json_extract(body, '$.fault')                        AS fault
FROM twiceproof_records
WHERE kind = 'run';

CREATE VIEW twiceproof_steps AS
SELECT
    json_extract(c.body, '$.run')                        AS run,
    json_extract(c.body, '$.operation')                  AS flow,
    json_extract(c.body, '$.key')                        AS key,
    s.key                                                AS step,
    s.state,
    json_extract(s.body, '$.repeat')                     AS repeat,
    coalesce(json_extract(s.body, '$.starts'), 1)        AS starts,
    json_extract(s.body, '$.order')                      AS place,
    datetime(s.created_at, 'unixepoch')                  AS created_at,
    datetime(s.updated_at, 'unixepoch')                  AS updated_at,
    datetime(json_extract(s.body, '$.not_before'), 'unixepoch') AS not_before,
    json_extract(s.body, '$.external')                   AS external,
    json_extract(s.body, '$.reason')                     AS reason,
    CASE WHEN json_type(s.body, '$.result') IS NOT NULL THEN substr(json_extract(s.body, '$.result', '$.result'), 2, (length(json_extract(s.body, '$.result', '$.result')) - 3) / 2) END AS result,
    json_extract(s.body, '$.fault')                      AS fault
FROM twiceproof_records AS s
JOIN twiceproof_records AS c ON c.space = s.space AND c.kind = 'run' AND c.key = 'self'
WHERE s.kind = 'step';
