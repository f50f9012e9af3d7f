-- Commits: one call is one transaction and one round trip. None of these functions waits: what another
-- session holds is answered as held and tried again later, so they cannot deadlock.
--
-- The answer: [the store's time, the number drawn, the batches held elsewhere, [write, what was found] for
-- each misfit]. A batch's version, and its fence if one was drawn, is the number plus the batch's place.
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
    -- Somebody may have locked the row by hand: waiting for them would hold up every caller behind us.
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

-- Any batches, each on its own. Everything is per write. Texts come joined by `mark`, a character that none
-- of them holds: PostgreSQL takes that apart much faster than arrays or JSON. Acts are (i)nsert, (R)eplace,
-- (r)eplace but keep the body, (d)elete, (c)heck and check (a)bsent.
CREATE FUNCTION {schema}.twiceproof_commit(
    mark text, acts text, batches int[], known bigint[], spaces text, kinds text, keys text, nonces text,
    states text, queues text, draws boolean[], leases double precision[], dues double precision[], bodies text
) RETURNS json LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
-- A plan is made once, and not one that is good only as long as the table is small.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    all_acts text[] := string_to_array(acts, NULL);
    all_spaces text[] := string_to_array(spaces, mark);
    all_kinds text[] := string_to_array(kinds, mark);
    all_keys text[] := string_to_array(keys, mark);
    all_nonces text[] := string_to_array(nonces, mark);
    all_states text[] := string_to_array(states, mark);
    all_queues text[] := string_to_array(queues, mark);
    all_bodies text[] := string_to_array(bodies, mark);
    at double precision;
    number bigint;
    held int[]; -- batches to be tried again
    bad int[];  -- batches to be left out: held, or a misfit
    misfits json;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'twiceproof needs READ COMMITTED: conditions would be checked against an old snapshot';
    END IF;

    -- The lock first: what the statements below see is newer than it, and so is the time.
    SELECT coalesce(array_agg(batch), '{}') INTO held FROM unnest(batches, all_spaces) AS w(batch, space)
    WHERE NOT {schema}.twiceproof_hold(space);

    -- Somebody may have locked a row by hand: waiting for them would hold up everyone in this commit.
    IF acts ~ '[rRd]' THEN
        SELECT held || coalesce(array_agg(w.batch), '{}') INTO held
        FROM unnest(all_acts, batches, all_spaces, all_kinds, all_keys) AS w(act, batch, space, kind, key)
        WHERE w.act IN ('r', 'R', 'd') AND w.batch <> ALL (held) AND NOT EXISTS (
            SELECT FROM {schema}.twiceproof_records AS r
            WHERE r.space = w.space AND r.kind = w.kind AND r.key = w.key FOR UPDATE SKIP LOCKED
        ) AND {schema}.twiceproof_look(w.space, w.kind, w.key) IS NOT NULL;
    END IF;
    at := {schema}.twiceproof_now();
    number := nextval('{schema}.twiceproof_number');

    SELECT held || array_agg(batch), json_agg(json_build_array(write, found)) INTO bad, misfits FROM (
        SELECT DISTINCT ON (w.batch) w.batch, w.write, {schema}.twiceproof_json(r) AS found
        FROM unnest(all_acts, batches, known, all_spaces, all_kinds, all_keys) WITH ORDINALITY
            AS w(act, batch, known, space, kind, key, write)
        LEFT JOIN {schema}.twiceproof_records AS r ON r.space = w.space AND r.kind = w.kind AND r.key = w.key
        WHERE w.batch <> ALL (held) AND CASE
            WHEN w.act IN ('i', 'a') THEN r.id IS NOT NULL
            WHEN w.known > 0 THEN r.fence IS DISTINCT FROM w.known
            ELSE r.version IS DISTINCT FROM -w.known END
        ORDER BY w.batch, w.write
    ) AS firsts;

    IF strpos(acts, 'i') > 0 THEN
        INSERT INTO {schema}.twiceproof_records (
            space, kind, key, version, fence, nonce, created_at, updated_at, state, lease_until, queue, due_at, body
        )
        SELECT w.space, w.kind, w.key, number + w.batch, CASE WHEN w.draw THEN number + w.batch ELSE 0 END,
            w.nonce, at, at, coalesce(w.state, ''), at + w.lease, coalesce(w.queue, ''), at + w.due, coalesce(w.body, '')
        FROM unnest(all_acts, batches, all_spaces, all_kinds, all_keys, all_nonces, all_states, all_queues,
                draws, leases, dues, all_bodies)
            AS w(act, batch, space, kind, key, nonce, state, queue, draw, lease, due, body)
        WHERE w.act = 'i' AND w.batch <> ALL (bad);
    END IF;

    IF acts ~ '[rR]' THEN
        UPDATE {schema}.twiceproof_records AS r SET
            state = coalesce(w.state, ''), version = number + w.batch,
            fence = CASE WHEN w.draw THEN number + w.batch ELSE r.fence END,
            nonce = w.nonce, updated_at = at, lease_until = at + w.lease, queue = coalesce(w.queue, ''),
            due_at = at + w.due, body = CASE w.act WHEN 'R' THEN coalesce(w.body, '') ELSE r.body END
        FROM unnest(all_acts, batches, all_spaces, all_kinds, all_keys, all_nonces, all_states, all_queues,
                draws, leases, dues, all_bodies)
            AS w(act, batch, space, kind, key, nonce, state, queue, draw, lease, due, body)
        WHERE w.act IN ('r', 'R') AND w.batch <> ALL (bad)
            AND r.space = w.space AND r.kind = w.kind AND r.key = w.key;
    END IF;

    IF strpos(acts, 'd') > 0 THEN
        DELETE FROM {schema}.twiceproof_records AS r
        USING unnest(all_acts, batches, all_spaces, all_kinds, all_keys) AS w(act, batch, space, kind, key)
        WHERE w.act = 'd' AND w.batch <> ALL (bad)
            AND r.space = w.space AND r.kind = w.kind AND r.key = w.key;
    END IF;

    RETURN json_build_array(at, number, held, misfits);
END $$;
