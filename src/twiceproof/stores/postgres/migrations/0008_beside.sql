-- What lies in these spaces, of these kinds, at most so much of each space: [record, …]. For whoever forgets many runs
-- together with all that belongs to them.
CREATE FUNCTION {schema}.twiceproof_beside(mark text, spaces text, kinds text, most int) RETURNS json
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
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
