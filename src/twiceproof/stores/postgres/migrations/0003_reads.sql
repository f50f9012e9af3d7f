-- What is at these addresses, in order: [the store's time, [record or null, …]].
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

-- Records whose time has come, longest overdue first, hidden until `hide` seconds from now:
-- [the store's time, [record, …], in how long the next one falls due]. Spaces held elsewhere are left for later.
CREATE FUNCTION {schema}.twiceproof_due(
    of_kind text, mark text, queues text, most int, hide double precision
) RETURNS json LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    -- An empty text splits into nothing, but is a queue's name.
    of_queues text[] := CASE queues WHEN '' THEN '{""}' ELSE string_to_array(queues, mark) END;
    at double precision := {schema}.twiceproof_now();
    number bigint;
    ripe bigint[];
    hidden json;
    later double precision;
BEGIN
    -- Only the head of each queue is read, however long it is, with some to spare for what others hold.
    -- The ORDER BY inside comes before the lock is tried, so that only what is handed out is locked.
    SELECT array_agg(id) INTO ripe FROM (
        SELECT id FROM (
            SELECT head.id, head.space FROM unnest(of_queues) AS q(name), LATERAL (
                SELECT r.id, r.space, r.due_at FROM {schema}.twiceproof_records AS r
                WHERE r.kind = of_kind AND r.queue = q.name AND r.due_at <= at
                ORDER BY r.due_at LIMIT 2 * most + 100
            ) AS head ORDER BY head.due_at, head.id
        ) AS waiting
        WHERE {schema}.twiceproof_hold(space) LIMIT least(most, 1000) -- the server's table of locks is not endless
    ) AS taken;

    IF ripe IS NOT NULL THEN
        at := {schema}.twiceproof_now();
        number := nextval('{schema}.twiceproof_number');
        -- Looked up by id alone, and judged afterwards: both indexes fit, and only this one reads few rows.
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
