-- Records, one row each. `id` grows with time and is the scan's cursor; the readable address has its own index.
-- Collation "C": keys are compared byte by byte, whatever the database's language, and an upgrade of the system's
-- collations cannot make the unique index forget a key.
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
) WITH (fillfactor = 85); -- room for a heartbeat's update on the same page, which touches no index

CREATE UNIQUE INDEX twiceproof_records_at ON {schema}.twiceproof_records (space, kind, key);
-- The condition holds for every row. It keeps this index out of lookups by address, which would choose it while the
-- table is empty and keep that plan while it grows: each commit would then read every row of its kind.
CREATE INDEX twiceproof_records_state ON {schema}.twiceproof_records (kind, state, id) WHERE id > 0;
-- The runs of one flow by age: by the first two parts of their space.
CREATE INDEX twiceproof_records_family ON {schema}.twiceproof_records
    (split_part(space, '/', 1), split_part(space, '/', 2), state, id) WHERE kind = 'run';
CREATE INDEX twiceproof_records_due ON {schema}.twiceproof_records (kind, queue, due_at) WHERE due_at IS NOT NULL;
-- Work that waits, by time, whatever its queue: there may be a queue for each of many thousand tenants. Those of retention
-- have no slash, and are left out: finished claims need no second entry, and are not in the way.
CREATE INDEX twiceproof_records_time ON {schema}.twiceproof_records (kind, due_at, queue)
    WHERE due_at IS NOT NULL AND pg_catalog.strpos(queue, '/') > 0;

-- What versions and fences are drawn from. It only grows and outlives every record. One step per commit: its batches
-- take the numbers in between, one each. No number is drawn twice, not even from a database that was restored from a
-- backup: each new connection brings the counter up to the server's time. A second has 2^22 numbers since 2020, which
-- keeps it below 2^53 until 2088; a commit takes 256 of them, so that the counter falls behind the time again unless
-- 16,384 commits are made in every second.
CREATE SEQUENCE {schema}.twiceproof_number AS bigint INCREMENT BY 256 NO CYCLE;

-- Facts about this database, for the doctor: which server wrote it last, where it is, when it was restored.
CREATE TABLE {schema}.twiceproof_facts (
    name  text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO {schema}.twiceproof_facts
SELECT 'server', system_identifier || '/' || timeline_id FROM pg_control_system(), pg_control_checkpoint();

-- The store's clock, in seconds. Tests replace it.
CREATE FUNCTION {schema}.twiceproof_now() RETURNS double precision LANGUAGE sql VOLATILE
RETURN extract(epoch FROM clock_timestamp());

-- Locks a space until the end of the transaction, unless another session has it; never waits.
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

-- Commits: one call is one transaction and one round trip. None of these functions waits: what another session holds is
-- reported as held and tried again later, so they cannot deadlock.
--
-- The result: [the store's time, the number drawn, the batches held elsewhere, [write, what was found] for each
-- conflict]. A batch's version, and its fence if one was drawn, is the number plus the batch's place.
-- `known` is the fence that must be there or, below zero, the version.

CREATE FUNCTION {schema}.twiceproof_look(at_space text, at_kind text, at_key text) RETURNS json
LANGUAGE plpgsql VOLATILE COST 100000 SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT {schema}.twiceproof_json(r) FROM {schema}.twiceproof_records AS r
            WHERE r.space = at_space AND r.kind = at_kind AND r.key = at_key);
END $$;

-- A batch of one Insert.
CREATE FUNCTION {schema}.twiceproof_insert(
    at_space text, at_kind text, at_key text, new_nonce text, new_state text, new_queue text,
    draw boolean, lease double precision, due double precision, new_body text
) RETURNS json LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at double precision;
    number bigint;
BEGIN
    IF NOT {schema}.twiceproof_hold(at_space) THEN
        RETURN json_build_array(0, 0, ARRAY[1], NULL);
    END IF;
    at := {schema}.twiceproof_now();
    number := nextval('{schema}.twiceproof_number');
    INSERT INTO {schema}.twiceproof_records (
        space, kind, key, version, fence, nonce, created_at, updated_at, state, lease_until, queue, due_at, body
    ) VALUES (
        at_space, at_kind, at_key, number + 1, CASE WHEN draw THEN number + 1 ELSE 0 END, new_nonce, at, at,
        new_state, at + lease, new_queue, at + due, new_body
    ) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN json_build_array(at, number, NULL, NULL);
    END IF;
    RETURN json_build_array(at, number, NULL, json_build_array(
        json_build_array(1, {schema}.twiceproof_look(at_space, at_kind, at_key))));
END $$;

-- A batch of one Replace.
CREATE FUNCTION {schema}.twiceproof_replace(
    at_space text, at_kind text, at_key text, known bigint, new_nonce text, new_state text, new_queue text,
    draw boolean, lease double precision, due double precision, new_body text
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r {schema}.twiceproof_records;
    at double precision;
    number bigint;
BEGIN
    IF NOT {schema}.twiceproof_hold(at_space) THEN
        RETURN json_build_array(0, 0, ARRAY[1], NULL);
    END IF;
    -- A user may have locked the row by hand: waiting for it would hold up every caller of this process.
    SELECT * INTO r FROM {schema}.twiceproof_records
    WHERE space = at_space AND kind = at_kind AND key = at_key FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND {schema}.twiceproof_look(at_space, at_kind, at_key) IS NOT NULL THEN
        RETURN json_build_array(0, 0, ARRAY[1], NULL);
    END IF;
    at := {schema}.twiceproof_now();
    IF (CASE WHEN known > 0 THEN r.fence = known ELSE r.version = -known END) THEN
        number := nextval('{schema}.twiceproof_number');
        UPDATE {schema}.twiceproof_records SET
            state = new_state, version = number + 1, fence = CASE WHEN draw THEN number + 1 ELSE fence END,
            nonce = new_nonce, updated_at = at, lease_until = at + lease, queue = new_queue,
            due_at = at + due, body = coalesce(new_body, body)
        WHERE id = r.id;
        RETURN json_build_array(at, number, NULL, NULL);
    END IF;
    RETURN json_build_array(at, 0, NULL, json_build_array(json_build_array(1, {schema}.twiceproof_json(r))));
END $$;

-- All parts of the batches of which one part is chosen.
CREATE FUNCTION {schema}.twiceproof_all_parts(chosen int[], heads int[]) RETURNS int[]
LANGUAGE sql IMMUTABLE
RETURN (SELECT coalesce(array_agg(part), '{}') FROM generate_subscripts(heads, 1) AS part
        WHERE heads[part] IN (SELECT heads[one] FROM unnest(chosen) AS one));

-- Any batches, each on its own. Acts are (i)nsert, (R)eplace, (r)eplace but keep the body, (d)elete, (c)heck and check
-- (a)bsent.
--
-- - Texts come joined by `mark`, a character that none of them holds: PostgreSQL takes that apart much faster than
--   arrays or JSON.
-- - What belongs to a batch (space, nonce) comes once per batch. What only an Insert or a Replace has comes once for
--   each of these, and `puts` says which write it is. A column without any value may come empty: it reads as NULL.
-- - Lists are taken apart in the SELECT list, in step: in FROM each would be stored first, row by row.
-- - A batch of several spaces comes in parts, one for each space. `heads` has for each part the place of the first one
--   of its batch; it is NULL if no batch is in parts. Parts land together or not at all.
CREATE FUNCTION {schema}.twiceproof_commit(
    mark text, spaces text, nonces text, acts text, places int[], known bigint[], kinds text, keys text,
    puts int[], states text, queues text, draws boolean[], leases double precision[], dues double precision[],
    bodies text, heads int[]
) RETURNS json LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
-- The plan is made once, and must not be one that is good only while the table is small.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    all_spaces text[] := string_to_array(spaces, mark);
    all_nonces text[] := string_to_array(nonces, mark);
    all_acts text[] := string_to_array(acts, NULL);
    all_kinds text[] := string_to_array(kinds, mark);
    all_keys text[] := string_to_array(keys, mark);
    all_states text[] := string_to_array(states, mark);
    all_queues text[] := string_to_array(queues, mark);
    all_bodies text[] := string_to_array(bodies, mark);
    at double precision;
    number bigint;
    held int[]; -- batches to be tried again
    bad int[];  -- batches to be left out: held, or a conflict
    misfits json;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'twiceproof needs READ COMMITTED: conditions would be checked against an old snapshot';
    END IF;

    -- The lock first: the snapshots of the statements below are newer than it, and so is the time.
    SELECT coalesce(array_agg(place), '{}') INTO held
    FROM (SELECT unnest(all_spaces) AS space, generate_series(1, cardinality(all_spaces)) AS place) AS b
    WHERE NOT {schema}.twiceproof_hold(space);

    -- A user may have locked a row by hand: waiting for it would hold up all batches of this commit.
    IF acts ~ '[rRd]' THEN
        SELECT held || array_agg(w.place) INTO held
        FROM (SELECT unnest(all_acts) AS act, unnest(places) AS place,
                  unnest(all_kinds) AS kind, unnest(all_keys) AS key) AS w
        WHERE w.act IN ('r', 'R', 'd') AND w.place <> ALL (held) AND NOT EXISTS (
            SELECT FROM {schema}.twiceproof_records AS r
            WHERE r.space = all_spaces[w.place] AND r.kind = w.kind AND r.key = w.key FOR UPDATE SKIP LOCKED
        ) AND {schema}.twiceproof_look(all_spaces[w.place], w.kind, w.key) IS NOT NULL;
    END IF;
    IF heads IS NOT NULL THEN
        held := {schema}.twiceproof_all_parts(held, heads);
    END IF;
    at := {schema}.twiceproof_now();
    number := nextval('{schema}.twiceproof_number');

    SELECT held || array_agg(place), json_agg(json_build_array(write, found)) INTO bad, misfits FROM (
        SELECT DISTINCT ON (w.place) w.place, w.write, {schema}.twiceproof_json(r) AS found
        FROM (SELECT unnest(all_acts) AS act, unnest(places) AS place, unnest(known) AS known,
                  unnest(all_kinds) AS kind, unnest(all_keys) AS key,
                  generate_series(1, cardinality(places)) AS write) AS w
        LEFT JOIN {schema}.twiceproof_records AS r ON r.space = all_spaces[w.place] AND r.kind = w.kind AND r.key = w.key
        WHERE w.place <> ALL (held) AND CASE
            WHEN w.act IN ('i', 'a') THEN r.id IS NOT NULL
            WHEN w.known > 0 THEN r.fence IS DISTINCT FROM w.known
            ELSE r.version IS DISTINCT FROM -w.known END
        ORDER BY w.place, w.write
    ) AS firsts;
    IF heads IS NOT NULL THEN
        bad := {schema}.twiceproof_all_parts(bad, heads);
    END IF;

    IF strpos(acts, 'i') > 0 THEN
        INSERT INTO {schema}.twiceproof_records (
            space, kind, key, version, fence, nonce, created_at, updated_at, state, lease_until, queue, due_at, body
        )
        SELECT all_spaces[places[w.put]], all_kinds[w.put], all_keys[w.put], number + places[w.put],
            CASE WHEN w.draw THEN number + places[w.put] ELSE 0 END, all_nonces[places[w.put]], at, at,
            coalesce(w.state, ''), at + w.lease, coalesce(w.queue, ''), at + w.due, coalesce(w.body, '')
        FROM (SELECT unnest(puts) AS put, unnest(all_states) AS state, unnest(all_queues) AS queue,
                  unnest(draws) AS draw, unnest(leases) AS lease, unnest(dues) AS due,
                  unnest(all_bodies) AS body) AS w
        WHERE all_acts[w.put] = 'i' AND places[w.put] <> ALL (bad);
    END IF;

    IF acts ~ '[rR]' THEN
        UPDATE {schema}.twiceproof_records AS r SET
            state = coalesce(w.state, ''), version = number + places[w.put],
            fence = CASE WHEN w.draw THEN number + places[w.put] ELSE r.fence END,
            nonce = all_nonces[places[w.put]], updated_at = at, lease_until = at + w.lease,
            queue = coalesce(w.queue, ''), due_at = at + w.due,
            body = CASE all_acts[w.put] WHEN 'R' THEN coalesce(w.body, '') ELSE r.body END
        FROM (SELECT unnest(puts) AS put, unnest(all_states) AS state, unnest(all_queues) AS queue,
                  unnest(draws) AS draw, unnest(leases) AS lease, unnest(dues) AS due,
                  unnest(all_bodies) AS body) AS w
        WHERE all_acts[w.put] IN ('r', 'R') AND places[w.put] <> ALL (bad)
            AND r.space = all_spaces[places[w.put]] AND r.kind = all_kinds[w.put] AND r.key = all_keys[w.put];
    END IF;

    IF strpos(acts, 'd') > 0 THEN
        DELETE FROM {schema}.twiceproof_records AS r
        USING (SELECT unnest(all_acts) AS act, unnest(places) AS place,
                   unnest(all_kinds) AS kind, unnest(all_keys) AS key) AS w
        WHERE w.act = 'd' AND w.place <> ALL (bad)
            AND r.space = all_spaces[w.place] AND r.kind = w.kind AND r.key = w.key;
    END IF;

    RETURN json_build_array(at, number, held, misfits);
END $$;

-- The records at these addresses, in order: [the store's time, [record or null, …]].
CREATE FUNCTION {schema}.twiceproof_fetch(mark text, spaces text, kinds text, keys text) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    RETURN (
        SELECT json_build_array({schema}.twiceproof_now(), json_agg({schema}.twiceproof_json(r) ORDER BY w.n))
        FROM unnest(string_to_array(spaces, mark), string_to_array(kinds, mark), string_to_array(keys, mark))
            WITH ORDINALITY AS w(space, kind, key, n)
        LEFT JOIN {schema}.twiceproof_records AS r ON r.space = w.space AND r.kind = w.kind AND r.key = w.key
    );
END $$;

-- The entries of the index of addresses after one of them, and before a space: what a scan by prefix looks at.
CREATE FUNCTION {schema}.twiceproof_entries(
    after_space text, after_kind text, after_key text, until_space text, most bigint
) RETURNS TABLE (id bigint, space text, kind text, key text) LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
-- In the index's order, and no more than asked: with statistics of a small table all would be read and sorted.
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT r.id, r.space, r.kind, r.key FROM {schema}.twiceproof_records AS r
    WHERE (r.space, r.kind, r.key) > (after_space, after_kind, after_key) AND r.space < until_space
    ORDER BY r.space, r.kind, r.key LIMIT most;
END $$;

-- Records that are due, longest overdue first, hidden until `hide` seconds from now: [the store's time, [record, …],
-- seconds until the next one falls due]. Spaces held elsewhere are left for later.
CREATE FUNCTION {schema}.twiceproof_due(
    of_kind text, mark text, queues text, most int, hide double precision
) RETURNS json LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
-- A generic plan expects a limit to return a tenth of all rows: with half a million of them the server would compile it at
-- each call, which takes a hundred times as long as to run it.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    -- An empty text splits into no parts, but is a queue's name.
    of_queues text[] := CASE queues WHEN '' THEN '{""}' ELSE string_to_array(queues, mark) END;
    at double precision := {schema}.twiceproof_now();
    number bigint;
    ripe bigint[];
    hidden json;
    later double precision;
BEGIN
    -- Only the head of each queue is read, however long it is, with some to spare for spaces held elsewhere.
    -- The inner ORDER BY comes before the locks are tried, so that only what is handed out is locked.
    SELECT array_agg(id) INTO ripe FROM (
        SELECT id FROM (
            SELECT head.id, head.space FROM unnest(of_queues) AS q(name), LATERAL (
                SELECT r.id, r.space, r.due_at FROM {schema}.twiceproof_records AS r
                WHERE r.kind = of_kind AND r.queue = q.name AND r.due_at <= at
                ORDER BY r.due_at LIMIT 2 * most + 100
            ) AS head ORDER BY head.due_at, head.id
        ) AS waiting
        WHERE {schema}.twiceproof_hold(space) LIMIT least(most, 1000) -- the server's lock table is limited
    ) AS taken;

    IF ripe IS NOT NULL THEN
        at := {schema}.twiceproof_now();
        number := nextval('{schema}.twiceproof_number');
        -- By id alone, the conditions are checked afterwards: two indexes fit, and only this one reads few rows.
        WITH mine AS MATERIALIZED (
            SELECT r.id, r.queue, r.due_at AS was FROM {schema}.twiceproof_records AS r
            WHERE r.id = ANY (ripe) FOR UPDATE SKIP LOCKED
        ), moved AS (
            UPDATE {schema}.twiceproof_records AS r SET version = number, due_at = at + hide
            FROM mine WHERE r.id = mine.id AND mine.queue = ANY (of_queues) AND mine.was <= at
            RETURNING r, mine.was, mine.id
        )
        SELECT json_agg({schema}.twiceproof_json(r) ORDER BY was, id) INTO hidden FROM moved;
    END IF;

    SELECT min(first) INTO later FROM unnest(of_queues) AS q(name), LATERAL (
        SELECT min(r.due_at) AS first FROM {schema}.twiceproof_records AS r
        WHERE r.kind = of_kind AND r.queue = q.name AND r.due_at IS NOT NULL
    ) AS each;
    RETURN json_build_array(at, coalesce(hidden, '[]'), later - at);
END $$;

-- What is due first, or will be, in the queues that are named with a slash: [the store's time, [[queue, due_at], …]].
CREATE FUNCTION {schema}.twiceproof_waiting(of_kind text, most int) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
-- Read in the index's order: without statistics the server would collect everything that waits, and sort it.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT json_build_array({schema}.twiceproof_now(), coalesce(json_agg(json_build_array(queue, due_at)), '[]'))
        FROM (
            SELECT r.queue, r.due_at FROM {schema}.twiceproof_records AS r
            WHERE r.kind = of_kind AND r.due_at IS NOT NULL AND strpos(r.queue, '/') > 0
            ORDER BY r.due_at LIMIT most
        ) AS first
    );
END $$;

-- Records of these kinds in these spaces, at most so many of each space: [record, …]. Retention deletes many runs at
-- once, with all that belongs to them.
CREATE FUNCTION {schema}.twiceproof_beside(mark text, spaces text, kinds text, most int) RETURNS json
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    of_kinds text[] := string_to_array(kinds, mark);
BEGIN
    RETURN (
        SELECT coalesce(json_agg({schema}.twiceproof_json(part.r)), '[]')
        FROM unnest(string_to_array(spaces, mark)) AS s(space), LATERAL (
            SELECT r FROM {schema}.twiceproof_records AS r
            WHERE r.space = s.space AND r.kind = ANY (of_kinds) ORDER BY r.space, r.kind, r.key LIMIT most
        ) AS part
    );
END $$;

-- -- restored backups -------------------------------------------------------------------------
-- Brings the counter up to the present and, with `skip`, so many numbers further. One session at a time sets the
-- counter: of two that had read it, the second would set it back. Sessions that draw meanwhile do not wait, and a counter
-- less than a quarter of a second behind is left alone: between reading and setting, they cannot draw that many.
CREATE FUNCTION {schema}.twiceproof_advance(skip bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present bigint := least((extract(epoch FROM clock_timestamp()) - 1577836800) * 4194304, 4503599627370496);
    last bigint;
BEGIN
    IF skip > 0 THEN
        PERFORM pg_advisory_xact_lock(500068082534);
    ELSIF NOT pg_try_advisory_xact_lock(500068082534) THEN
        RETURN NULL; -- another session is doing it
    END IF;
    SELECT last_value INTO last FROM {schema}.twiceproof_number;
    IF skip > 0 OR present > last + 1048576 THEN
        RETURN setval('{schema}.twiceproof_number', greatest(present, last) + skip);
    END IF;
    RETURN last;
END $$;

-- Where this ledger is: in which database, in which table, and written there by which transaction. It differs in a
-- restored dump, in a copied database, and for rows that were put back.
INSERT INTO {schema}.twiceproof_facts VALUES ('place', ''), ('restored', '') ON CONFLICT DO NOTHING;

CREATE FUNCTION {schema}.twiceproof_place() RETURNS text LANGUAGE sql VOLATILE RETURN (
    SELECT concat(d.oid, '/', f.tableoid, '/', f.xmin) FROM {schema}.twiceproof_facts AS f, pg_database AS d
    WHERE f.name = 'place' AND d.datname = current_database());

-- The ledger was `noted` at another place: records the new place and the time, and skips numbers. Does nothing if
-- another session was faster. Without waiting for a standby.
CREATE FUNCTION {schema}.twiceproof_restored(noted text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'local', true);
    UPDATE {schema}.twiceproof_facts AS f SET value = concat(d.oid, '/', f.tableoid, '/', pg_current_xact_id()::xid)
    FROM pg_database AS d WHERE f.name = 'place' AND f.value = noted AND d.datname = current_database();
    IF FOUND AND noted <> '' THEN
        UPDATE {schema}.twiceproof_facts SET value = to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"')
        WHERE name = 'restored';
        PERFORM {schema}.twiceproof_advance(2147483648);
    END IF;
    RETURN FOUND;
END $$;
SELECT {schema}.twiceproof_restored('');

-- -- views for people -------------------------------------------------------------------------
-- A body as JSON that PostgreSQL can read. Its text type has no NUL: one in a single result would break every view, so
-- it is shown as U+FFFD. `\\` is replaced meanwhile: what follows it is not an escape, but part of the text.
CREATE FUNCTION {schema}.twiceproof_readable(body text) RETURNS json LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN position('\u0000' IN body) = 0 THEN body
    ELSE replace(replace(replace(body, '\\', chr(1)), '\u0000', '\ufffd'), chr(1), '\\') END::json;

CREATE VIEW {schema}.twiceproof_claims AS
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

CREATE VIEW {schema}.twiceproof_runs AS
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

CREATE VIEW {schema}.twiceproof_steps AS
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

-- -- messages from SQL ----------------------------------------------------------------------------

-- Sends a message in the caller's transaction, for triggers and other languages: what `app.outbox(connection)` does. A
-- role needs EXECUTE on it, and USAGE on the schema, and nothing else: it runs with the rights of the ledger's owner. It
-- notifies nobody: a NOTIFY in a transaction makes all commits queue behind one lock, so that relays find the message at
-- their next look.
--
-- Messages with the same order key are published in the order of their commits: their lane is locked until the caller's
-- transaction ends, so that it is best called late. Two transactions that send to two order keys the other way round are
-- a deadlock, which PostgreSQL ends as any other.
--
-- Returns true for a new message, and false if there is one with this key and body, also one that `app.send` wrote.

-- A JSON value as text of one form, which `encode_body` in outbox/message.py makes as well: members in the order of their
-- names' bytes, no blanks, numbers without exponents and without zeros at the end.
CREATE FUNCTION {schema}.twiceproof_plain_json(value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CASE jsonb_typeof(value)
        WHEN 'object' THEN
            RETURN (SELECT concat('{', string_agg(
                        concat(to_jsonb(e.key)::text, ':', {schema}.twiceproof_plain_json(e.value)), ','
                        ORDER BY e.key COLLATE "C"), '}')
                    FROM jsonb_each(value) AS e);
        WHEN 'array' THEN
            RETURN (SELECT concat('[', string_agg({schema}.twiceproof_plain_json(e.value), ',' ORDER BY e.place), ']')
                    FROM jsonb_array_elements(value) WITH ORDINALITY AS e(value, place));
        WHEN 'number' THEN
            RETURN trim_scale((value #>> '{}')::numeric)::text;
        ELSE
            RETURN value::text;
    END CASE;
END $$;

-- A name that occurs twice in one object of a JSON value: some consumers would take the first of the two, and some the last.
CREATE FUNCTION {schema}.twiceproof_repeated_name(value json) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    repeated text;
BEGIN
    IF json_typeof(value) = 'object' THEN
        SELECT e.key INTO repeated FROM json_each(value) AS e GROUP BY e.key HAVING count(*) > 1 LIMIT 1;
        IF repeated IS NULL THEN
            SELECT min({schema}.twiceproof_repeated_name(e.value)) INTO repeated
            FROM json_each(value) AS e WHERE json_typeof(e.value) IN ('object', 'array');
        END IF;
    ELSIF json_typeof(value) = 'array' THEN
        SELECT min({schema}.twiceproof_repeated_name(e.value)) INTO repeated
        FROM json_array_elements(value) AS e(value) WHERE json_typeof(e.value) IN ('object', 'array');
    END IF;
    RETURN repeated;
END $$;

-- Whether a text has nothing visible, as `is_blank` in keys/key.py says: it comes from an empty field.
CREATE FUNCTION {schema}.twiceproof_is_blank(value text) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
RETURN value !~ '[^[:space:]\u00a0\u00ad\u0300-\u036f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]';

-- Adds a message to its lane, as `append` in outbox/lanes.py does: the message, a numbered ticket, and the lane, which is
-- written also if nothing in it changes, so that a relay does not remove it meanwhile. False: the message is there already.
CREATE FUNCTION {schema}.twiceproof_append(lane_space text, lane_queue text, message_key text, message_body text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lane {schema}.twiceproof_records;
    number bigint;
    at double precision;
    ticket bigint := 1;
    new_nonce text := gen_random_uuid()::text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'twiceproof_send: an ordered message needs READ COMMITTED, and this transaction is %',
            current_setting('transaction_isolation') USING ERRCODE = 'feature_not_supported',
            HINT = 'Set the isolation level, or leave out order_key.';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(lane_space, 20871)); -- as twiceproof_hold, but waits
    PERFORM FROM {schema}.twiceproof_records AS r
    WHERE r.space = lane_space AND r.kind = 'message' AND r.key = message_key;
    IF FOUND THEN
        RETURN false;
    END IF;
    SELECT * INTO lane FROM {schema}.twiceproof_records AS r
    WHERE r.space = lane_space AND r.kind = 'message' AND r.key = 'self' FOR UPDATE;
    IF lane.body NOT LIKE '{%' THEN
        RAISE EXCEPTION 'twiceproof_send: the ledger is encrypted, and this function cannot seal values; send from Python'
            USING ERRCODE = 'feature_not_supported';
    END IF;
    IF lane.id IS NOT NULL THEN
        ticket := coalesce((lane.body::json ->> 'next')::bigint, 1);
    END IF;
    WHILE EXISTS (SELECT FROM {schema}.twiceproof_records AS r WHERE r.space = lane_space AND r.kind = 'ticket'
                  AND r.key = to_char(ticket, 'FM0000000000000000')) LOOP
        ticket := ticket + 1;
    END LOOP;
    at := {schema}.twiceproof_now();
    number := nextval('{schema}.twiceproof_number') + 1;
    INSERT INTO {schema}.twiceproof_records (
        space, kind, key, version, fence, nonce, created_at, updated_at, state, queue, due_at, body
    ) VALUES
        (lane_space, 'message', message_key, number, 0, new_nonce, at, at, 'pending', '', NULL, message_body),
        (lane_space, 'ticket', to_char(ticket, 'FM0000000000000000'), number, 0, new_nonce, at, at, '', '', NULL,
            substr(message_key, 2));
    IF lane.id IS NULL THEN
        INSERT INTO {schema}.twiceproof_records (
            space, kind, key, version, fence, nonce, created_at, updated_at, state, queue, due_at, body
        ) VALUES (
            lane_space, 'message', 'self', number, 0, new_nonce, at, at, 'lane', lane_queue, at,
            json_build_object('next', ticket + 1)::text
        );
    ELSE
        UPDATE {schema}.twiceproof_records AS r SET
            version = number, nonce = new_nonce, updated_at = at, lease_until = NULL, queue = lane_queue,
            due_at = CASE WHEN lane.due_at IS NOT NULL
                THEN at + greatest(0, lane.due_at - greatest(at, lane.updated_at)) END,
            body = json_build_object('next', ticket + 1)::text
        WHERE r.id = lane.id;
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION {schema}.twiceproof_send(
    target text, topic text, body json, key text, headers json DEFAULT '{}', place text DEFAULT NULL,
    tenant text DEFAULT 'default', order_key text DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    is_ordered boolean := coalesce(order_key, '') <> '';
    message_space text := CASE WHEN coalesce(order_key, '') <> '' THEN concat(tenant, '/~lane/', target, '/', order_key)
        ELSE concat(tenant, '/~out/', target, '/', key) END;
    message_key text := CASE WHEN coalesce(order_key, '') <> '' THEN concat('=', key) ELSE 'self' END;
    target_queue text := concat(tenant, '/~out/', target);
    digest text := encode(sha256(convert_to({schema}.twiceproof_plain_json(body::jsonb), 'UTF8')), 'hex');
    at double precision := {schema}.twiceproof_now();
    is_new boolean;
    message json;
    found_body json;
BEGIN
    IF coalesce(tenant, '') !~ '^[A-Za-z0-9_.@-]{1,128}$' OR coalesce(target, '') !~ '^[A-Za-z0-9_.@-]{1,128}$' THEN
        RAISE EXCEPTION 'twiceproof_send: tenant and target are names of letters, digits and _ . - @'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF coalesce(topic, '') !~ '^[^[:cntrl:] */#>]{1,255}$' OR coalesce(place, topic) ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'twiceproof_send: write the topic like orders.paid' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF coalesce(key, '') !~ '^[^[:cntrl:]]+$' OR octet_length(key) > 512 OR key <> btrim(key)
        OR {schema}.twiceproof_is_blank(key) THEN
        RAISE EXCEPTION 'twiceproof_send: the key is empty or invisible, too long, or has control characters or blanks around it'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF is_ordered AND (order_key ~ '[[:cntrl:]]' OR octet_length(order_key) > 512 OR order_key <> btrim(order_key)
                       OR {schema}.twiceproof_is_blank(order_key)) THEN
        RAISE EXCEPTION 'twiceproof_send: the order key is invisible, too long, or has control characters or blanks around it'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF body IS NULL OR octet_length(body::text) > 262144 THEN
        RAISE EXCEPTION 'twiceproof_send: the body is missing, or has more than 262144 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF coalesce({schema}.twiceproof_repeated_name(body), {schema}.twiceproof_repeated_name(headers)) IS NOT NULL THEN
        RAISE EXCEPTION 'twiceproof_send: the name % is twice in one object; send each name once',
            to_json(coalesce({schema}.twiceproof_repeated_name(body), {schema}.twiceproof_repeated_name(headers)))
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF json_typeof(headers) <> 'object'
        OR EXISTS (SELECT FROM json_each(headers) AS h
                   WHERE json_typeof(h.value) <> 'string' OR h.key !~ '^[a-z0-9_-]+$' OR h.key LIKE 'ce-%'
                       OR (h.value #>> '{}') ~ '[[:cntrl:]]') THEN
        RAISE EXCEPTION 'twiceproof_send: headers are an object of texts, with names in lower case other than ce-…'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    message := json_build_object(
        'topic', topic, 'key', key, 'target', target, 'place', coalesce(nullif(place, ''), topic), 'digest', digest,
        'body', body::text, 'order', coalesce(order_key, ''), 'headers', headers, 'source', concat('twiceproof/', tenant)
    );
    IF is_ordered THEN
        is_new := {schema}.twiceproof_append(message_space, target_queue, message_key, message::text);
    ELSE
        INSERT INTO {schema}.twiceproof_records (
            space, kind, key, version, fence, nonce, created_at, updated_at, state, queue, due_at, body
        ) VALUES (
            message_space, 'message', message_key, nextval('{schema}.twiceproof_number') + 1, 0, gen_random_uuid()::text,
            at, at, 'pending', target_queue, at, message::text
        ) ON CONFLICT DO NOTHING;
        is_new := FOUND;
    END IF;
    IF is_new THEN
        RETURN true;
    END IF;
    SELECT r.body::json INTO found_body FROM {schema}.twiceproof_records AS r
    WHERE r.space = message_space AND r.kind = 'message' AND r.key = message_key;
    IF found_body ->> 'digest' <> digest OR found_body ->> 'topic' <> topic THEN
        RAISE EXCEPTION 'twiceproof_send: a message with this key was sent before, and this one differs; use another key'
            USING ERRCODE = 'unique_violation';
    END IF;
    RETURN false;
END $$;
REVOKE ALL ON FUNCTION {schema}.twiceproof_send(text, text, json, text, json, text, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.twiceproof_plain_json(jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.twiceproof_repeated_name(json) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.twiceproof_is_blank(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.twiceproof_append(text, text, text, text) FROM PUBLIC;
