"""Looking for due work among many thousands of queues: what is asked for is found, and what is not costs nothing."""

import sqlite3
from contextlib import closing

import psycopg
import pytest

from twiceproof.prove.clocks import ShiftedClock
from twiceproof.prove.store_contract.case import due_keys, schedule, take_due
from twiceproof.prove.store_contract.due import DueRecords, HiddenRecords
from twiceproof.records import Address, Insert
from twiceproof.stores.base import FEW, chosen
from twiceproof.stores.grouped import GroupedStore
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

    def steps():
        """Of SQLite's machine."""
        taken = []
        with closing(sqlite3.connect(path)) as db:
            db.set_progress_handler(lambda: taken.append(1) and 0, 1)
            assert sqlite_engine.look(db, "claim", queues, 0.0, 10)[0] == []
        return len(taken)

    schedule(store, "first", 1_000, queue=MANY[0])
    few = steps()
    for nth in range(0, 2_000, 500):
        store.write(
            *(Insert(Address("s", "claim", str(at)), "", queue=MANY[0], due_in=2_000) for at in range(nth, nth + 500))
        ).block()
    assert steps() <= few + 5
    store.close()


def test_the_longest_overdue_queues_are_chosen_and_the_first_of_the_others_is_next():
    heads = [("a", 1.0), ("theirs", 2.0), ("b", 3.0), ("c", 4.0), ("d", 9.0)]
    asked = {"a", "b", "c", "d"}
    assert chosen(heads, asked, 5.0, 10) == (["a", "b", "c"], 9.0)
    assert chosen(heads, asked, 5.0, 2) == (["a", "b"], 4.0)
    assert chosen(heads, asked, 10.0, 10) == (["a", "b", "c", "d"], None)
    assert chosen(heads, {"none"}, 10.0, 10) == ([], None)
    assert FEW > 0
