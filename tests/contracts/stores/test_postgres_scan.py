"""A page of a scan on PostgreSQL reads what it shows, whatever the server's statistics say, or if it has none."""

import psycopg
import pytest

from twiceproof.errors import BadWrite
from twiceproof.stores.base import MOST_LOOKED_AT
from twiceproof.stores.postgres.engine import PostgresEngine
from twiceproof.stores.postgres.scans import PostgresPrefixScan, PostgresScan

pytestmark = pytest.mark.server

FILL = """
INSERT INTO twiceproof.twiceproof_records
    (version, fence, created_at, updated_at, space, kind, key, state, nonce, queue, body)
SELECT 1, 1, 0, 0, {space}, '{kind}', lpad(nth::text, 6, '0'),
    (ARRAY['done', 'done', 'failed', 'held'])[1 + nth % 4], 'n', '', repeat('x', 300)
FROM generate_series(1, {count}) AS nth"""
PAGE = 10


@pytest.fixture(scope="module")
def dsn(postgres_server):
    """Claims first, then one large space, then a few letters: each guess by the share of a kind is wrong."""
    dsn = postgres_server.create_database()
    PostgresEngine(dsn).close()
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("ALTER TABLE twiceproof.twiceproof_records SET (autovacuum_enabled = off)")
        db.execute(FILL.format(space="'space ' || nth", kind="claim", count=20_000))
        db.execute(FILL.format(space="'large'", kind="step", count=20_000))
        db.execute(FILL.format(space="'letter ' || nth", kind="letter", count=100))
        db.execute(FILL.format(space="'acme/sync_order/' || nth", kind="run", count=20_000))
        db.execute(FILL.format(space="'acme/sync/' || nth", kind="run", count=100))
        db.execute(FILL.format(space="'acme/sync/17'", kind="step", count=6_000))
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture(params=["no statistics", "statistics"])
def db(dsn, request):
    with psycopg.connect(dsn, autocommit=True) as db:
        if request.param == "no statistics":
            db.execute("DELETE FROM pg_statistic WHERE starelid = 'twiceproof.twiceproof_records'::regclass")
        else:
            db.execute("ANALYZE twiceproof.twiceproof_records")
        yield db


def rows_read(db, scan):
    """Of the table or its indexes: what each part of the plan gave out or threw away."""
    ((plan,),) = run(db, scan, "EXPLAIN (ANALYZE, FORMAT JSON)")
    return sum(_read(plan[0]["Plan"]))


def run(db, scan, before=""):
    with psycopg.ClientCursor(db) as cursor:
        sql = scan.sql.decode()
        for nth, value in reversed(list(enumerate(scan.values, 1))):
            sql = sql.replace(f"${nth}", f"'{value.decode()}'")
        return cursor.execute(f"{before} {sql}").fetchall()


def _read(plan):
    if "Relation Name" in plan:
        given, thrown = plan["Actual Rows"], plan.get("Rows Removed by Filter", 0)
        yield plan["Actual Loops"] * (given + thrown)
    for part in plan.get("Plans", ()):
        yield from _read(part)


@pytest.mark.parametrize(
    "narrow",
    [
        ("claim", None, None, None),
        ("step", None, None, None),
        ("step", None, None, "30000"),
        ("letter", None, None, None),
        ("claim", None, "held", None),
        ("step", None, "held", None),
        ("letter", None, "held", None),
        ("step", "large", None, None),
        ("step", "large", None, "key:010000"),
        ("step", "large", "held", None),
    ],
)
def test_a_page_reads_no_more_than_a_few_times_what_it_shows(db, narrow):
    assert rows_read(db, PostgresScan(*narrow, PAGE)) <= 5 * (PAGE + 1)


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize(
    "narrow",
    [
        ("claim", None, None, None),
        ("claim", None, None, "10000"),
        ("step", None, "held", "30000"),
        ("letter", None, None, None),
        ("letter", None, "held", None),
        ("run", None, None, None),
        ("run", None, None, None, "acme/sync/"),
        ("run", None, "held", None, "acme/sync/"),
        ("run", None, None, None, "acme/sync_order/"),
        ("run", None, "held", None, "acme/sync_order/"),
    ],
)
def test_a_page_by_age_reads_no_more_than_a_few_times_what_it_shows(db, narrow, newest):
    kind, space, state, after, *family = narrow
    scan = PostgresScan(kind, space, state, after, PAGE, newest, *family)
    assert rows_read(db, scan) <= 5 * (PAGE + 1)


@pytest.mark.parametrize("state", [None, "held"])
@pytest.mark.parametrize(
    ("kind", "prefix", "entries"),
    [("run", "acme/sync/2", 11), ("run", "acme/sync/", 6_100), ("letter", "letter 5", 11), ("run", "acme/", 26_100)],
)
def test_a_page_by_prefix_reads_no_more_than_it_may(db, kind, prefix, entries, state):
    """The entries of its part of the index, up to as many as a page may pass over, and the records that were meant."""
    scan = PostgresPrefixScan(kind, prefix, state, None, PAGE)
    with db.transaction():
        before = fetched(db)
        run(db, scan)
        read = fetched(db) - before
    assert 0 < read <= min(entries, MOST_LOOKED_AT) * (2 if state else 1) + 2 * (PAGE + 1)


def fetched(db):
    """Rows of the table that this transaction has read, by an index or without: a function's plan is not shown."""
    (count,) = db.execute(
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'twiceproof_records'"
    ).fetchone()
    return count


def test_no_page_of_a_prefix_looks_at_more_entries_than_it_may(dsn):
    engine, seen, after = PostgresEngine(dsn), [], None
    for _ in range(10):
        page = engine.scan("run", None, None, after, 50, None, "acme/sync/")
        seen.append([record.at.space for record in page.records])
        after = page.after
        if after is None:
            break
    engine.close()
    assert sorted(space for part in seen for space in part) == sorted(f"acme/sync/{nth}" for nth in range(1, 101))
    assert any(len(part) < 50 for part in seen[:-1])  # one had to stop among the steps


def test_a_scan_reads_all_where_the_question_leaves_it_to_guesses(db):
    """The control: the same page asked by kind and id alone."""
    scan = PostgresScan("step", None, None, None, PAGE)
    scan.sql = (
        b"SELECT * FROM twiceproof.twiceproof_records WHERE kind = $1 AND id > $2 AND id > 0 ORDER BY id LIMIT $3"
    )
    assert rows_read(db, scan) >= 20_000


@pytest.mark.parametrize("narrow", [("step", "large", None), ("claim", None, None), ("claim", None, "done")])
def test_every_record_is_met_once_and_in_order(dsn, narrow):
    engine, seen, after = PostgresEngine(dsn), [], None
    for _ in range(100):
        page = engine.scan(*narrow, after, 900)
        seen += [record.at.key for record in page.records]
        after = page.after
        if after is None:
            break
    engine.close()
    wanted = range(1, 20_001) if narrow[2] is None else [nth for nth in range(1, 20_001) if nth % 4 < 2]
    assert seen == [f"{nth:06}" for nth in wanted]


@pytest.mark.parametrize(("space", "after"), [(None, "key:a"), (None, "x"), ("large", "17")])
def test_a_cursor_of_another_scan_is_refused_before_anything_is_asked(space, after):
    with pytest.raises(BadWrite, match="begin it again"):
        PostgresScan("claim", space, None, after, PAGE)


@pytest.mark.parametrize("name", ["due", "waiting", "beside", "entries"])
def test_a_query_with_a_limit_is_never_compiled(dsn, name):
    """Its generic plan expects a tenth of all rows. From half a million rows on, the server would compile it at each
    call, in up to fifty times the time that it runs.
    """
    with psycopg.connect(dsn) as db:
        asked = "SELECT proconfig FROM pg_proc WHERE proname = %s AND pronamespace = 'twiceproof'::regnamespace"
        ((settings,),) = db.execute(asked, [f"twiceproof_{name}"]).fetchall()
    assert "jit=off" in settings
