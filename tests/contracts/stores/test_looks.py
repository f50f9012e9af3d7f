"""Looking for due work among many thousands of queues: what is asked for is found, and what is not costs nothing."""

import sqlite3
from contextlib import closing

import psycopg
import pytest
from msgspec import structs

from tests.contracts.stores.movable_mariadb import MovableMariadbEngine
from tests.contracts.stores.row_places import place  # noqa: F401
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.prove.store_contract.case import due_keys, schedule, take_due
from twiceproof.prove.store_contract.due import DueRecords, HiddenRecords
from twiceproof.records import Address, Conflict, Insert, Replace
from twiceproof.stores.base import FEW, chosen, indexed_by_time, soonest
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.mariadb import engine as mariadb
from twiceproof.stores.mariadb.engine import MariadbEngine
from twiceproof.stores.mariadb.rows import LedgerSql
from twiceproof.stores.postgres import engine as postgres
from twiceproof.stores.postgres.engine import PostgresEngine
from twiceproof.stores.sqlite import engine as sqlite_engine
from twiceproof.stores.sqlite.engine import SqliteEngine

MANY = [f"t{nth}/sync@1" for nth in range(40_000)]  # more values than most builds of SQLite take in a statement
CLOCK = (
    "CREATE OR REPLACE FUNCTION twiceproof.twiceproof_now() RETURNS double precision LANGUAGE sql VOLATILE"
    " RETURN extract(epoch FROM clock_timestamp()) + {shift}"
)


class Looks(DueRecords, HiddenRecords):
    """Few queues are asked for one by one; here they are found as many are."""

    module = None

    @pytest.fixture(autouse=True)
    def by_heads(self, monkeypatch):
        monkeypatch.setattr(self.module, "FEW", -1)

    def test_what_is_due_is_found_among_forty_thousand_queues(self, store):
        for nth in (700, 3, 39_999, 42):
            schedule(store, nth, nth, queue=MANY[nth])
        self.advance(1_000)
        assert due_keys(store, *MANY, hide=500) == ["3", "42", "700"]
        assert take_due(store, MANY).next_in == pytest.approx(500, abs=30)

    def test_what_others_serve_is_neither_handed_out_nor_in_the_way(self, store):
        for nth in range(150):
            schedule(store, f"theirs {nth}", 0, queue=f"theirs{nth}@1")
            schedule(store, f"theirs later {nth}", 50, queue=f"later{nth}@1")
        schedule(store, "ours later", 500, queue=MANY[8])
        assert take_due(store, MANY, limit=1).next_in == pytest.approx(500, abs=30)
        schedule(store, "ours", 0, queue=MANY[7])
        assert due_keys(store, *MANY, limit=1) == ["ours"]
        assert len(due_keys(store, *(f"theirs{nth}@1" for nth in range(150)), limit=1_000)) == 150


class OfOneTenant:
    """An engine whose queues are all named as one tenant's: what waits in them is indexed by time."""

    def __init__(self, engine):
        self.inner = engine

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def commit(self, batches):
        outcomes = self.inner.commit([structs.replace(batch, writes=self._given(batch.writes)) for batch in batches])
        return [self._seen(one, "found") if isinstance(one, Conflict) else one for one in outcomes]

    def fetch(self, addresses):
        return [self._seen(found, "record") for found in self.inner.fetch(addresses)]

    def due(self, kind, queues, limit, hide):
        due = self.inner.due(kind, [f"t/{queue}" for queue in queues], limit, hide)
        return structs.replace(due, records=[self._plain(record) for record in due.records])

    def _given(self, writes):
        return tuple(
            structs.replace(write, queue=f"t/{write.queue}") if isinstance(write, Insert | Replace) else write
            for write in writes
        )

    def _seen(self, answer, name):
        return structs.replace(answer, **{name: self._plain(getattr(answer, name))})

    def _plain(self, record):
        return record and structs.replace(record, queue=record.queue.removeprefix("t/"))


class LooksByTime(Looks):
    """What waits is found by its time, whatever its queue: the other way is closed."""

    statement = ""

    @pytest.fixture(autouse=True)
    def by_time(self, monkeypatch):
        monkeypatch.setattr(self.module, self.statement, "SELECT no_such_column")

    def make_store(self):
        store = super().make_store()
        store.engine = OfOneTenant(store.engine)
        return store

    def test_what_others_serve_has_an_end(self, store, monkeypatch):
        """Where too much of others' is in the way, the look goes from queue to queue."""
        monkeypatch.undo()
        for name, value in (("FEW", -1), ("PASSED", 50)):
            monkeypatch.setattr(self.module, name, value)
        self.test_what_others_serve_is_neither_handed_out_nor_in_the_way(store)

    def test_what_others_do_later_is_a_time_before_which_nothing_is_due(self, store, monkeypatch):
        monkeypatch.setattr(self.module, "PASSED", 50)
        for nth in range(150):
            schedule(store, f"theirs {nth}", 100 + nth, queue=f"theirs{nth}@1")
        schedule(store, "ours", 500, queue=MANY[8])
        assert take_due(store, MANY, limit=1).next_in == pytest.approx(150, abs=20)
        self.advance(600)
        monkeypatch.setattr(self.module, "PASSED", 1_000)
        assert due_keys(store, *MANY) == ["ours"]


class TestSqliteLooks(Looks):
    module = sqlite_engine

    @pytest.fixture(autouse=True)
    def file(self, tmp_path):
        self.path = tmp_path / "twiceproof.db"
        self.clock = ShiftedClock()

    def make_store(self):
        return GroupedStore(SqliteEngine(self.path, clock=self.clock, durability="process"), clock=self.clock)

    def advance(self, seconds):
        self.clock.advance(seconds)


class TestSqliteLooksByTime(LooksByTime, TestSqliteLooks):
    statement = "ALL"


@pytest.mark.server
class TestPostgresLooks(Looks):
    module = postgres
    shift = 0.0

    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn):
        self.url = postgres_dsn

    def make_store(self):
        return GroupedStore(PostgresEngine(self.url))

    def advance(self, seconds):
        self.shift += seconds
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(CLOCK.format(shift=self.shift))


@pytest.mark.server
class TestPostgresLooksByTime(LooksByTime, TestPostgresLooks):
    statement = "HEADS"


@pytest.mark.server
class TestMariadbLooks(Looks):
    module = mariadb

    @pytest.fixture(autouse=True)
    def database(self, mariadb_url):
        self.url = mariadb_url

    def make_store(self):
        return GroupedStore(MovableMariadbEngine(self.url))

    def advance(self, seconds):
        engine = MovableMariadbEngine(self.url)
        engine.advance(seconds)
        engine.close()


@pytest.mark.server
class TestMariadbLooksByTime(LooksByTime, TestMariadbLooks):
    @pytest.fixture(autouse=True)
    def by_time(self, monkeypatch):
        monkeypatch.setattr(LedgerSql, "first_of_all", lambda self, kind: ("SELECT no_such_column", ()))


@pytest.mark.parametrize("queues", [MANY[:1], MANY], ids=["one queue", "very many"])
def test_on_sqlite_a_look_that_finds_nothing_waits_for_no_writer(tmp_path, queues):
    path = tmp_path / "twiceproof.db"
    store = GroupedStore(SqliteEngine(path, patience=0.05))
    schedule(store, "later", 1_000, queue=MANY[0])
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert take_due(store, queues).next_in == pytest.approx(1_000, abs=30)
    writer.execute("ROLLBACK")
    writer.close()
    store.close()


@pytest.mark.parametrize("queues", [MANY[:1], MANY[:5], MANY], ids=["one queue", "a few", "very many"])
def test_on_sqlite_a_look_costs_the_same_however_much_waits_in_a_queue(tmp_path, queues):
    path = tmp_path / "twiceproof.db"
    store = GroupedStore(SqliteEngine(path, durability="process"))
    schedule(store, "first", 1_000, queue=MANY[0])
    few = steps(path, queues)
    for nth in range(0, 2_000, 500):
        store.write(
            *(Insert(Address("s", "claim", str(at)), "", queue=MANY[0], due_in=2_000) for at in range(nth, nth + 500))
        ).block()
    assert steps(path, queues) <= few + 5
    store.close()


def steps(path, queues):
    """Of SQLite's machine, for a look that finds nothing."""
    taken = []
    with closing(sqlite3.connect(path)) as db:
        db.set_progress_handler(lambda: taken.append(1) and 0, 1)
        assert sqlite_engine.look(db, "claim", queues, 0.0, 10)[0] == []
    return len(taken)


def fall_asleep(store, queues):
    """Something sleeps in each queue."""
    for start in range(0, len(queues), 500):
        writes = (Insert(Address("s", "claim", queue), "", queue=queue, due_in=2_000) for queue in queues[start:][:500])
        store.write(*writes).block()


def test_on_sqlite_a_look_costs_the_same_however_many_queues_sleep(tmp_path):
    path = tmp_path / "twiceproof.db"
    store = GroupedStore(SqliteEngine(path, durability="process"))
    fall_asleep(store, MANY[:200])
    few = steps(path, MANY)
    fall_asleep(store, MANY[200:4_000])
    assert steps(path, MANY) <= few + 5
    store.close()


@pytest.mark.server
def test_on_postgres_a_look_reads_as_much_however_many_queues_sleep(postgres_dsn, monkeypatch):
    monkeypatch.setattr(postgres, "HEADS", "SELECT no_such_column")  # from queue to queue
    store = GroupedStore(PostgresEngine(postgres_dsn))
    fall_asleep(store, MANY[:200])
    few = blocks(postgres_dsn)
    fall_asleep(store, MANY[200:4_000])
    assert blocks(postgres_dsn) <= few + 5
    assert take_due(store, MANY).next_in == pytest.approx(2_000, abs=30)
    store.close()


def blocks(dsn):
    """Of the records and their index, for a look at the first fifty."""
    fetched = " + ".join(
        f"pg_stat_get_xact_blocks_fetched('twiceproof.twiceproof_records{name}'::regclass)"
        for name in ("", "_due", "_time", "_state")
    )
    with psycopg.connect(dsn) as db:
        (before,) = db.execute(f"SELECT {fetched}").fetchone()
        db.execute("SELECT twiceproof.twiceproof_waiting('claim', 50)")
        (after,) = db.execute(f"SELECT {fetched}").fetchone()
    return after - before


@pytest.mark.server
def test_on_mariadb_a_look_reads_as_much_however_many_queues_sleep(mariadb_url):
    with closing(GroupedStore(MariadbEngine(mariadb_url))) as store:
        fall_asleep(store, MANY[:2_000])
        some = entries(store)
        fall_asleep(store, MANY[2_000:4_000])
        assert entries(store) <= some + 5


def entries(store):
    """Of tables and their indexes, as MariaDB counts them for the connection that looks."""
    status = (
        "SELECT SUM(variable_value) FROM information_schema.session_status WHERE variable_name LIKE 'HANDLER_READ%%'"
    )
    (((before,),),) = store.engine._side.ask((status, ()))
    assert take_due(store, MANY).next_in == pytest.approx(2_000, abs=30)
    (((after,),),) = store.engine._side.ask((status, ()))
    return after - before


@pytest.mark.server
def test_on_stores_of_rows_a_look_asks_as_often_for_many_tenants_as_for_one(place):  # noqa: F811
    with closing(place.open()) as store:
        schedule(store, 0, 2_000, queue=MANY[0])
        one = requests(store, MANY[:1])
        assert requests(store, MANY[:300]) == one
        for nth in range(1, 300):
            schedule(store, nth, 2_000, queue=MANY[nth])
        assert requests(store, MANY[:300]) == one


def requests(store, queues):
    before = store.engine.table.requests
    assert take_due(store, queues).next_in == pytest.approx(2_000, abs=60)
    return store.engine.table.requests - before


def test_the_longest_overdue_queues_are_chosen_and_the_first_of_the_others_is_next():
    heads = [("a", 1.0), ("theirs", 2.0), ("b", 3.0), ("c", 4.0), ("d", 9.0)]
    asked = {"a", "b", "c", "d"}
    assert chosen(heads, asked, 5.0, 10) == (["a", "b", "c"], 9.0)
    assert chosen(heads, asked, 5.0, 2) == (["a", "b"], 4.0)
    assert chosen(heads, asked, 10.0, 10) == (["a", "b", "c", "d"], None)
    assert chosen(heads, {"none"}, 10.0, 10) == ([], None)
    assert FEW > 0


def test_of_what_waits_by_time_the_queues_of_the_longest_overdue_are_chosen():
    waiting = [("a", 1.0), ("theirs", 2.0), ("a", 3.0), ("b", 4.0), ("c", 9.0)]
    asked = {"a", "b", "c"}
    assert soonest(waiting, asked, 5.0, 10, 6) == (["a", "b"], 9.0, True)
    assert soonest(waiting, asked, 5.0, 2, 6) == (["a"], 4.0, True)
    assert soonest(waiting, asked, 10.0, 10, 6) == (["a", "b", "c"], None, True)
    assert soonest(waiting, {"none"}, 10.0, 10, 6) == ([], None, True)


def test_where_the_first_records_do_not_suffice_nothing_is_due_before_their_last():
    waiting = [("a", 1.0), ("theirs", 2.0), ("theirs", 7.0)]
    assert soonest(waiting, {"a"}, 5.0, 10, 3) == (["a"], 7.0, False)
    assert soonest(waiting, {"a"}, 8.0, 10, 3) == (["a"], 7.0, False)
    assert soonest([], {"a"}, 8.0, 10, 3) == ([], None, True)


def test_queues_of_tenants_are_indexed_by_time_and_others_are_not():
    assert indexed_by_time(frozenset(MANY))
    assert not indexed_by_time(frozenset({*MANY, "claims.expire"}))
