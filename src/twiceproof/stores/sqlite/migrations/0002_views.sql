-- For people: the runs of flows and their steps, readable with plain SQL. A run is a claim that has work.
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
    json_extract(body, '$.work.input')                   AS input,
    json_extract(body, '$.result')                       AS result,
    json_extract(body, '$.fault')                        AS fault
FROM twiceproof_records
WHERE kind = 'claim' AND json_extract(body, '$.work') IS NOT NULL;

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
    json_extract(s.body, '$.result')                     AS result,
    json_extract(s.body, '$.fault')                      AS fault
FROM twiceproof_records AS s
JOIN twiceproof_records AS c ON c.space = s.space AND c.kind = 'claim' AND c.key = 'self'
WHERE s.kind = 'step';
