-- A run is a record of its own kind: a list of runs reads no claims, and the other way round. Sealed bodies cannot be
-- looked into, and stay as they are: their keys are answered as before, but nobody goes on with them.
UPDATE {schema}.twiceproof_records SET kind = 'run'
WHERE kind = 'claim' AND CASE WHEN body LIKE '{%'
    THEN {schema}.twiceproof_readable(body) -> 'work' IS NOT NULL ELSE false END;

CREATE OR REPLACE VIEW {schema}.twiceproof_claims AS
SELECT
    coalesce({schema}.twiceproof_readable(body) ->> 'tenant', 'default') AS tenant,
    {schema}.twiceproof_readable(body) ->> 'operation' AS operation,
    {schema}.twiceproof_readable(body) ->> 'key'       AS key,
    state,
    {schema}.twiceproof_readable(body) ->> 'owner'     AS owner,
    coalesce(({schema}.twiceproof_readable(body) ->> 'attempt')::int, 1) AS attempt,
    {schema}.twiceproof_readable(body) ->> 'run'       AS run,
    fence,
    to_timestamp(created_at)                  AS created_at,
    to_timestamp(updated_at)                  AS updated_at,
    to_timestamp(lease_until)                 AS lease_until,
    {schema}.twiceproof_readable(body) -> 'result'     AS result,
    {schema}.twiceproof_readable(body) -> 'fault'      AS fault,
    body
FROM {schema}.twiceproof_records
WHERE kind IN ('claim', 'run');

CREATE OR REPLACE VIEW {schema}.twiceproof_runs AS
SELECT
    {schema}.twiceproof_readable(body) ->> 'run'                          AS run,
    coalesce({schema}.twiceproof_readable(body) ->> 'tenant', 'default')  AS tenant,
    {schema}.twiceproof_readable(body) ->> 'operation'                    AS flow,
    coalesce({schema}.twiceproof_readable(body) #>> '{work,version}', '1') AS version,
    {schema}.twiceproof_readable(body) ->> 'key'                          AS key,
    state,
    {schema}.twiceproof_readable(body) ->> 'reason'                       AS reason,
    {schema}.twiceproof_readable(body) ->> 'owner'                        AS owner,
    coalesce(({schema}.twiceproof_readable(body) ->> 'attempt')::int, 1)  AS attempt,
    to_timestamp(created_at)                                     AS created_at,
    to_timestamp(updated_at)                                     AS updated_at,
    to_timestamp(lease_until)                                    AS lease_until,
    CASE WHEN state IN ('held', 'queued', 'waiting') THEN to_timestamp(due_at) END AS due_at,
    {schema}.twiceproof_readable(body) #> '{work,input}'                  AS input,
    {schema}.twiceproof_readable(body) -> 'result'                        AS result,
    {schema}.twiceproof_readable(body) -> 'fault'                         AS fault
FROM {schema}.twiceproof_records
WHERE kind = 'run';

CREATE OR REPLACE VIEW {schema}.twiceproof_steps AS
SELECT
    {schema}.twiceproof_readable(c.body) ->> 'run'                        AS run,
    {schema}.twiceproof_readable(c.body) ->> 'operation'                  AS flow,
    {schema}.twiceproof_readable(c.body) ->> 'key'                        AS key,
    s.key                                                        AS step,
    s.state,
    {schema}.twiceproof_readable(s.body) ->> 'repeat'                     AS repeat,
    coalesce(({schema}.twiceproof_readable(s.body) ->> 'starts')::int, 1) AS starts,
    ({schema}.twiceproof_readable(s.body) ->> 'order')::int               AS place,
    to_timestamp(s.created_at)                                   AS created_at,
    to_timestamp(s.updated_at)                                   AS updated_at,
    to_timestamp(({schema}.twiceproof_readable(s.body) ->> 'not_before')::double precision) AS not_before,
    {schema}.twiceproof_readable(s.body) ->> 'external'                   AS external,
    {schema}.twiceproof_readable(s.body) ->> 'reason'                     AS reason,
    {schema}.twiceproof_readable(s.body) -> 'result'                      AS result,
    {schema}.twiceproof_readable(s.body) -> 'fault'                       AS fault
FROM {schema}.twiceproof_records AS s
JOIN {schema}.twiceproof_records AS c ON c.space = s.space AND c.kind = 'run' AND c.key = 'self'
WHERE s.kind = 'step';
