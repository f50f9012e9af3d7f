-- No number is drawn twice, not even from a database that was brought back from a backup: whoever connects brings the
-- counter up to the server's time. A second has 2^22 numbers since 2020, which leaves it below 2^53 until 2088; a commit
-- takes 256 of them, so that the counter falls behind the time again unless 16,384 commits are made in every second.
ALTER SEQUENCE {schema}.twiceproof_number INCREMENT BY 256;

-- To the present and, with `skip`, so many numbers on. Who sets the counter is alone with it: two who had read it before
-- would set it back. Those who draw meanwhile do not wait, and what is less than a quarter of a second behind is left
-- alone: in the moment between reading and setting they cannot draw that many.
CREATE FUNCTION {schema}.twiceproof_advance(skip bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present bigint := least((extract(epoch FROM clock_timestamp()) - 1577836800) * 4194304, 4503599627370496);
    last bigint;
BEGIN
    IF skip > 0 THEN
        PERFORM pg_advisory_xact_lock(500068082534);
    ELSIF NOT pg_try_advisory_xact_lock(500068082534) THEN
        RETURN NULL; -- somebody else is just doing it
    END IF;
    SELECT last_value INTO last FROM {schema}.twiceproof_number;
    IF skip > 0 OR present > last + 1048576 THEN
        RETURN setval('{schema}.twiceproof_number', greatest(present, last) + skip);
    END IF;
    RETURN last;
END $$;

-- Where this ledger is: in which database, in which table, and written there by which transaction. A restored dump, a
-- copied database and rows that were put back are elsewhere.
INSERT INTO {schema}.twiceproof_facts VALUES ('place', ''), ('restored', '') ON CONFLICT DO NOTHING;

CREATE FUNCTION {schema}.twiceproof_place() RETURNS text LANGUAGE sql VOLATILE RETURN (
    SELECT concat(d.oid, '/', f.tableoid, '/', f.xmin) FROM {schema}.twiceproof_facts AS f, pg_database AS d
    WHERE f.name = 'place' AND d.datname = current_database());

-- It was `noted` elsewhere: takes note of the new place and of the time, and skips numbers. Does nothing where another
-- session was faster. Without waiting for a standby.
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
