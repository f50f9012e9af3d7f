-- Any batches, each on its own: the same acts, the same answer and the same discipline as the function of this name
-- in 0002, which stays for processes of an older release. A group of steps takes a seventh less of the server's time:
--
-- - What belongs to a batch (space, nonce) comes once per batch. What only an Insert or a Replace has comes once for
--   each of these, and `puts` says which write it is. A column in which nothing is given may come empty: it reads as NULL.
-- - Lists are taken apart in the SELECT list, in step: in FROM each would be stored away first, row by row.
CREATE FUNCTION {schema}.twiceproof_commit(
    mark text, spaces text, nonces text, acts text, places int[], known bigint[], kinds text, keys text,
    puts int[], states text, queues text, draws boolean[], leases double precision[], dues double precision[],
    bodies text
) RETURNS json LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
-- A plan is made once, and not one that is good only as long as the table is small.
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
    bad int[];  -- batches to be left out: held, or a misfit
    misfits json;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'twiceproof needs READ COMMITTED: conditions would be checked against an old snapshot';
    END IF;

    -- The lock first: what the statements below see is newer than it, and so is the time.
    SELECT coalesce(array_agg(place), '{}') INTO held
    FROM (SELECT unnest(all_spaces) AS space, generate_series(1, cardinality(all_spaces)) AS place) AS b
    WHERE NOT {schema}.twiceproof_hold(space);

    -- Somebody may have locked a row by hand: waiting for them would hold up everyone in this commit.
    IF acts ~ '[rRd]' THEN
        SELECT held || array_agg(w.place) INTO held
        FROM (SELECT unnest(all_acts) AS act, unnest(places) AS place,
                  unnest(all_kinds) AS kind, unnest(all_keys) AS key) AS w
        WHERE w.act IN ('r', 'R', 'd') AND w.place <> ALL (held) AND NOT EXISTS (
            SELECT FROM {schema}.twiceproof_records AS r
            WHERE r.space = all_spaces[w.place] AND r.kind = w.kind AND r.key = w.key FOR UPDATE SKIP LOCKED
        ) AND {schema}.twiceproof_look(all_spaces[w.place], w.kind, w.key) IS NOT NULL;
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
