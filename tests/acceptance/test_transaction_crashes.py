"""`kill -9` around the commit of a transactional step: the user's row and its entry are both there, or neither."""

from __future__ import annotations

import signal
import sqlite3

import psycopg
import pytest

from tests.acceptance.children import Child, die
from tests.acceptance.shops import Shop, make_shop
from tests.acceptance.ways import LEASE, WAYS
from twiceproof.stores.user_transaction import Join

DRIVERS = {way.name: way for way in WAYS}
NEITHER, BOTH = ([], []), (["17"], [("reserve", "done")])
POINTS = {"in the work": NEITHER, "between entry and commit": NEITHER, "right after the commit": BOTH}


@pytest.fixture(
    params=[
        "sqlite3",
        "SQLAlchemy session, SQLite",
        *(pytest.param(name, marks=pytest.mark.server) for name in ("psycopg", "psycopg awaited", "asyncpg")),
        pytest.param("SQLAlchemy awaited session, asyncpg", marks=pytest.mark.server),
    ]
)
def way(request):
    return DRIVERS[request.param]


@pytest.fixture
def shop(request, way, tmp_path) -> Shop:
    return make_shop(request, way.store, tmp_path)


def both(shop):
    return shop.stock(), shop.steps()


def die_at(point):
    """In a child of its own: from here on its commits are deadly."""
    commit = Join.commit

    def deadly(self):
        if point == "between entry and commit":
            die()
        yield from commit(self)
        die()

    Join.commit = deadly


def crash(shop, way, point):
    def work(_):
        if point != "in the work":
            die_at(point)
        during = (lambda _: die()) if point == "in the work" else (lambda _: None)
        way.call(shop.place, shop.place.app(), "17", during=during)

    assert Child(work).end() == -signal.SIGKILL


@pytest.mark.parametrize("point", POINTS)
def test_row_and_entry_are_both_there_or_neither_and_in_the_end_once(shop, way, point):
    crash(shop, way, point)
    assert both(shop) == POINTS[point]
    shop.place.advance(LEASE + 1)
    with shop.place.app() as app:
        assert way.call(shop.place, app, "17") == "reserved 17"
    assert both(shop) == BOTH


def insert_apart(shop):
    """The user's own transaction, and the ledger's entry in another."""
    if shop.store == "sqlite":
        with sqlite3.connect(shop.place.directory / "claims.db") as db:
            db.execute("INSERT INTO stock (name) VALUES ('17')")
        db.close()
    else:
        with psycopg.connect(shop.place.url) as db:
            db.execute("INSERT INTO stock (name) VALUES ('17')")


def test_control_an_entry_outside_the_transaction_is_torn_from_its_row(shop):
    def buying(app, after):
        @app.step(repeat="safe")
        def reserve():
            insert_apart(shop)
            after()

        @app.flow(key="order:17", lease=LEASE)
        def buy():
            reserve()

        return buy

    assert Child(lambda _: buying(shop.place.app(), die)()).end() == -signal.SIGKILL
    assert both(shop) == (["17"], [])
    shop.place.advance(LEASE + 1)
    with shop.place.app() as app:
        buying(app, lambda: None)()
    assert shop.stock() == ["17", "17"]
