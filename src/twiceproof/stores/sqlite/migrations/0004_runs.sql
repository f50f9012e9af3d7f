-- A run is a record of its own kind: a list of runs reads no claims, and the other way round. Sealed bodies cannot be
-- looked into, and stay as they are: their keys are answered as before, but nobody goes on with them.
UPDATE twiceproof_records SET kind = 'run'
WHERE kind = 'claim' AND CASE WHEN body LIKE '{%' THEN json_type(body, '$.work') IS NOT NULL ELSE 0 END;

DROP VIEW twiceproof_claims;
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

DROP VIEW twiceproof_runs;
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

DROP VIEW twiceproof_steps;
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
