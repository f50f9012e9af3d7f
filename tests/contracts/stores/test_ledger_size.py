"""A ledger that forgets as much as it takes in keeps its size; one that is never swept grows."""

import asyncio
import sqlite3
from contextlib import closing

import psycopg
import pytest

from twiceproof import App
from twiceproof.claims.retention import sweep
from twiceproof.operations import block
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres.engine import PostgresEngine
from twiceproof.stores.sqlite.engine import SqliteEngine

CYCLES, CLAIMS = 16, 250
KEEP = 60.0
CLOCK = (
    "CREATE OR REPLACE FUNCTION twiceproof.twiceproof_now() RETURNS double precision LANGUAGE sql VOLATILE"
    " RETURN extract(epoch FROM clock_timestamp()) + {shift}"
)
SIZE = "SELECT pg_total_relation_size('twiceproof.twiceproof_records')"


class SqlitePlace:
    def __init__(self, directory):
        self.path = directory / "ledger.db"
        self.clock = ShiftedClock()
        engine = SqliteEngine(self.path, clock=self.clock, durability="process")
        self.store = GroupedStore(engine, clock=self.clock)

    def advance(self, seconds):
        self.clock.advance(seconds)

    def size(self):
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute("PRAGMA page_count").fetchone()[0]


class PostgresPlace:
    """Vacuumed after every cycle, as autovacuum does by itself once enough rows are dead."""

    def __init__(self, dsn):
        self.dsn = dsn
        self.shift = 0.0
        self.store = GroupedStore(PostgresEngine(dsn))

    def advance(self, seconds):
        self.shift += seconds
        self.ask(CLOCK.format(shift=self.shift))

    def size(self):
        self.ask("VACUUM twiceproof.twiceproof_records")
        return self.ask(SIZE).fetchone()[0]

    def ask(self, sql):
        with psycopg.connect(self.dsn, autocommit=True) as db:
            return db.execute(sql)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def place(request, tmp_path):
    made = (
        SqlitePlace(tmp_path) if request.param == "sqlite" else PostgresPlace(request.getfixturevalue("postgres_dsn"))
    )
    yield made
    made.store.close()


def sizes(place, *, swept):
    """The ledger's size after each cycle: claims come, their time goes by, and they are forgotten or not."""
    app = App(place.store)
    app._housekeeper.stop()

    @app.once(key="order:{number}", keep=KEEP)
    async def order(number: int) -> str:
        return "x" * 200

    async def take_in(cycle):
        await asyncio.gather(*(order(cycle * CLAIMS + nth) for nth in range(CLAIMS)))

    found = []
    for cycle in range(CYCLES):
        asyncio.run(take_in(cycle))
        place.advance(KEEP + 1)
        while swept and block(sweep(place.store)).total:
            pass
        found.append(place.size())
    return found


def test_what_is_forgotten_makes_room_for_what_comes(place):
    found = sizes(place, swept=True)
    assert max(found[CYCLES // 2 :]) <= max(found[: CYCLES // 2]), found


def test_control_without_sweeps_it_grows(place):
    found = sizes(place, swept=False)
    assert found[-1] > 1.5 * found[CYCLES // 2], found
