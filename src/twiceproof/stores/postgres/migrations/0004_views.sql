-- For people: the runs of flows and their steps, readable with plain SQL. A run is a claim that has work.
CREATE VIEW {schema}.twiceproof_runs AS
SELECT
    body::json ->> 'run'                          AS run,
    coalesce(body::json ->> 'tenant', 'default')  AS tenant,
    body::json ->> 'operation'                    AS flow,
    coalesce(body::json #>> '{work,version}', '1') AS version,
    body::json ->> 'key'                          AS key,
    state,
    body::json ->> 'reason'                       AS reason,
    body::json ->> 'owner'                        AS owner,
    coalesce((body::json ->> 'attempt')::int, 1)  AS attempt,
    to_timestamp(created_at)                      AS created_at,
    to_timestamp(updated_at)                      AS updated_at,
    to_timestamp(lease_until)                     AS lease_until,
    CASE WHEN state IN ('held', 'queued', 'waiting') THEN to_timestamp(due_at) END AS due_at,
    body::json #> '{work,input}'                  AS input,
    body::json -> 'result'                        AS result,
    body::json -> 'fault'                         AS fault
FROM {schema}.twiceproof_records
WHERE kind = 'claim' AND body::json -> 'work' IS NOT NULL;

CREATE VIEW {schema}.twiceproof_steps AS
SELECT
    c.body::json ->> 'run'                        AS run,
    c.body::json ->> 'operation'                  AS flow,
    c.body::json ->> 'key'                        AS key,
    s.key                                         AS step,
    s.state,
    s.body::json ->> 'repeat'                     AS repeat,
    coalesce((s.body::json ->> 'starts')::int, 1) AS starts,
    (s.body::json ->> 'order')::int               AS place,
    to_timestamp(s.created_at)                    AS created_at,
    to_timestamp(s.updated_at)                    AS updated_at,
    to_timestamp((s.body::json ->> 'not_before')::double precision) AS not_before,
    s.body::json ->> 'external'                   AS external,
    s.body::json ->> 'reason'                     AS reason,
    s.body::json -> 'result'                      AS result,
    s.body::json -> 'fault'                       AS fault
FROM {schema}.twiceproof_records AS s
JOIN {schema}.twiceproof_records AS c ON c.space = s.space AND c.kind = 'claim' AND c.key = 'self'
WHERE s.kind = 'step';
