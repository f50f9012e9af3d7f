-- Sends a message in the caller's transaction, for triggers and other languages: what `app.outbox(connection)` does, for
-- messages without an order key. A role needs EXECUTE on it, and USAGE on the schema, and nothing else: it runs with the
-- rights of the ledger's owner. It notifies nobody: a NOTIFY in a transaction makes all commits queue behind one lock, so
-- that relays find the message at their next look.
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

CREATE FUNCTION {schema}.twiceproof_send(
    target text, topic text, body json, key text, headers json DEFAULT '{}', place text DEFAULT NULL,
    tenant text DEFAULT 'default'
) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    message_space text := concat(tenant, '/~out/', target, '/', key);
    digest text := encode(sha256(convert_to({schema}.twiceproof_plain_json(body::jsonb), 'UTF8')), 'hex');
    at double precision := {schema}.twiceproof_now();
    found_body json;
BEGIN
    IF coalesce(tenant, '') !~ '^[A-Za-z0-9_.@-]{1,128}$' OR coalesce(target, '') !~ '^[A-Za-z0-9_.@-]{1,128}$' THEN
        RAISE EXCEPTION 'twiceproof_send: tenant and target are names of letters, digits and _ . - @'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF coalesce(topic, '') !~ '^[^[:cntrl:] */#>]{1,255}$' OR coalesce(place, topic) ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'twiceproof_send: write the topic like orders.paid' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF coalesce(key, '') !~ '^[^[:cntrl:]]+$' OR octet_length(key) > 512 OR key <> btrim(key) THEN
        RAISE EXCEPTION 'twiceproof_send: the key is empty, too long, or has control characters or blanks around it'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF body IS NULL OR octet_length(body::text) > 262144 THEN
        RAISE EXCEPTION 'twiceproof_send: the body is missing, or has more than 262144 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF json_typeof(headers) <> 'object'
        OR EXISTS (SELECT FROM json_each(headers) AS h
                   WHERE json_typeof(h.value) <> 'string' OR h.key !~ '^[a-z0-9_-]+$' OR h.key LIKE 'ce-%'
                       OR (h.value #>> '{}') ~ '[[:cntrl:]]') THEN
        RAISE EXCEPTION 'twiceproof_send: headers are an object of texts, with names in lower case other than ce-…'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO {schema}.twiceproof_records (
        space, kind, key, version, fence, nonce, created_at, updated_at, state, queue, due_at, body
    ) VALUES (
        message_space, 'message', 'self', nextval('{schema}.twiceproof_number') + 1, 0, gen_random_uuid()::text, at, at,
        'pending', concat(tenant, '/~out/', target), at,
        json_build_object(
            'topic', topic, 'key', key, 'target', target, 'place', coalesce(nullif(place, ''), topic), 'digest', digest,
            'body', body::text, 'headers', headers, 'source', concat('twiceproof/', tenant)
        )::text
    ) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT r.body::json INTO found_body FROM {schema}.twiceproof_records AS r
    WHERE r.space = message_space AND r.kind = 'message' AND r.key = 'self';
    IF found_body ->> 'digest' <> digest OR found_body ->> 'topic' <> topic THEN
        RAISE EXCEPTION 'twiceproof_send: a message with this key was sent before, and this one differs; use another key'
            USING ERRCODE = 'unique_violation';
    END IF;
    RETURN false;
END $$;
REVOKE ALL ON FUNCTION {schema}.twiceproof_send(text, text, json, text, json, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.twiceproof_plain_json(jsonb) FROM PUBLIC;
