-- Records, one row each. `id` grows with time and is the scan's cursor; the readable address is its own
-- index. Collation "C": keys are compared byte by byte, whatever the database's language, and an upgrade
-- of the system's collations cannot make the unique index forget a key.
CREATE TABLE {schema}.twiceproof_records (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version     bigint NOT NULL,
    fence       bigint NOT NULL,
    created_at  double precision NOT NULL,
    updated_at  double precision NOT NULL,
    lease_until double precision,
    due_at      double precision,
    space       text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    state       text COLLATE "C" NOT NULL,
    nonce       text COLLATE "C" NOT NULL,
    queue       text COLLATE "C" NOT NULL,
    body        text COLLATE "C" NOT NULL
) WITH (fillfactor = 85); -- room for a heartbeat to stay on its page, where it need not touch any index

CREATE UNIQUE INDEX twiceproof_records_at ON {schema}.twiceproof_records (space, kind, key);
-- The condition holds for every row. It keeps this index out of lookups by address, which would choose it
-- while the table is empty and keep that plan while it grows: each commit then reads every row of its kind.
CREATE INDEX twiceproof_records_state ON {schema}.twiceproof_records (kind, state, id) WHERE id > 0;
CREATE INDEX twiceproof_records_due ON {schema}.twiceproof_records (kind, queue, due_at) WHERE due_at IS NOT NULL;

-- What versions and fences are drawn from. It only grows and outlives every record. One step per commit:
-- its batches take the numbers in between, one each.
CREATE SEQUENCE {schema}.twiceproof_number AS bigint INCREMENT BY 1024 NO CYCLE;

-- Facts about this database: which server wrote it last, for the doctor.
CREATE TABLE {schema}.twiceproof_facts (
    name  text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO {schema}.twiceproof_facts
SELECT 'server', system_identifier || '/' || timeline_id FROM pg_control_system(), pg_control_checkpoint();

-- The store's clock, in seconds. Tests replace it.
CREATE FUNCTION {schema}.twiceproof_now() RETURNS double precision LANGUAGE sql VOLATILE
RETURN extract(epoch FROM clock_timestamp());

-- Takes a space until the end of the transaction, unless another session has it; never waits.
CREATE FUNCTION {schema}.twiceproof_hold(space text) RETURNS boolean LANGUAGE sql VOLATILE
RETURN pg_try_advisory_xact_lock(hashtextextended(space, 20871));

-- A record as the client reads it.
CREATE FUNCTION {schema}.twiceproof_json(r {schema}.twiceproof_records) RETURNS json LANGUAGE sql STABLE
RETURN CASE WHEN r.id IS NOT NULL THEN json_build_object(
    'at', json_build_object('space', r.space, 'kind', r.kind, 'key', r.key),
    'body', r.body, 'state', r.state, 'version', r.version::text, 'fence', r.fence, 'nonce', r.nonce,
    'created_at', r.created_at, 'updated_at', r.updated_at, 'lease_until', r.lease_until,
    'queue', r.queue, 'due_at', r.due_at
) END;

-- For people: the claims, readable with plain SQL.
CREATE VIEW {schema}.twiceproof_claims AS
SELECT
    coalesce(body::json ->> 'tenant', 'default') AS tenant,
    body::json ->> 'operation'        AS operation,
    body::json ->> 'key'              AS key,
    state,
    body::json ->> 'owner'            AS owner,
    coalesce((body::json ->> 'attempt')::int, 1) AS attempt,
    body::json ->> 'run'              AS run,
    fence,
    to_timestamp(created_at)           AS created_at,
    to_timestamp(updated_at)           AS updated_at,
    to_timestamp(lease_until)          AS lease_until,
    body::json -> 'result'            AS result,
    body::json -> 'fault'              AS fault,
    body
FROM {schema}.twiceproof_records
WHERE kind = 'claim';
