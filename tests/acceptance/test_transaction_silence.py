"""A transaction whose connection goes silent while it stays open ends when its time is over, and is done once."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from tests.acceptance.shops import make_shop
from tests.acceptance.ways import WAYS
from tests.servers.toxics import Silence
from twiceproof import Retry
from twiceproof.stores.mariadb.join import AT_ONCE

BOTH = (["17"], [("reserve", "done")])
TWICE = Retry(attempts=2, first=0)
ON_MARIADB = ("PyMySQL", "SQLAlchemy session, PyMySQL", "Django, PyMySQL")  # one for each kind of driver
ON_SERVERS = [way for way in WAYS if way.store == "postgres" or way.name in ON_MARIADB]
DIALLED = [way for way in ON_SERVERS if way.dials_itself and not way.awaited]
LIMIT = "twiceproof.flows.transaction.LIMIT"
PATIENCE = 40.0
MOMENTS = {
    "postgres": {
        "its work": b"stock",  # in quotes or not
        "its ledger entry": b"CASE WHEN pg_catalog.current_setting('twiceproof.joined'",
        "its commit": b"COMMIT",
    },
    "mariadb": {"its work": b"stock", "its ledger entry": AT_ONCE.encode(), "its commit": b"\x03COMMIT"},
}
# Transactions that are open in the shop's database.
OPEN = {
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'",
    "mariadb": (
        "SELECT count(*) FROM information_schema.innodb_trx AS t"
        " JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE()"
    ),
}


@pytest.fixture
def shop(way, request, tmp_path):
    return make_shop(request, way.store, tmp_path)


@pytest.fixture
def proxy(shop, fault_proxy):
    parts = urlsplit(shop.place.url)
    return fault_proxy(parts.hostname, parts.port)


@pytest.fixture
def far(shop, proxy):
    return replace(shop.place, url=proxy.url(shop.place.url))


def within(seconds, work):
    """What it returned. A call that hangs fails the test, and not the whole run of tests."""
    box = []
    thread = threading.Thread(target=lambda: box.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert box, f"no end after {seconds:g} s"
    return box[0]


@pytest.mark.server
@pytest.mark.parametrize("moment", MOMENTS["postgres"])
@pytest.mark.parametrize("way", ON_SERVERS, ids=lambda way: way.name)
def test_a_connection_that_goes_silent_is_given_up_and_the_work_done_once(shop, far, proxy, way, moment, monkeypatch):
    monkeypatch.setattr(LIMIT, 1.0, raising=False)
    silence = Silence(MOMENTS[way.store][moment])
    with far.app() as app:
        proxy.arm(silence)
        assert within(PATIENCE, lambda: way.call(far, app, "17", retry=TWICE)) == "reserved 17"
    assert silence.bites
    assert (shop.stock(), shop.steps()) == BOTH
    assert shop._run(OPEN[way.store]) == [(0,)]  # nobody is left behind who holds its rows or its space


@pytest.mark.server
@pytest.mark.parametrize("way", DIALLED, ids=lambda way: way.name)
def test_a_steps_own_timeout_counts_for_its_transaction(shop, far, proxy, way):
    with far.app() as app:
        proxy.arm(Silence(MOMENTS[way.store]["its work"]))
        with pytest.raises(TimeoutError, match=r"did not end within 0.5 s, and its connection was cut"):
            within(PATIENCE, lambda: outcome(way.call, far, app, "17", timeout="0.5s"))()
    assert shop.stock() == []


def outcome(work, *args, **kwargs):
    """What it raised is raised by whoever asks."""
    try:
        value = work(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - handed on
        caught = error

        def raise_it():
            raise caught

        return raise_it
    return lambda: value


@pytest.fixture(
    params=["sqlite", *(pytest.param(store, marks=pytest.mark.server) for store in ("postgres", "mariadb"))]
)
def any_shop(request, tmp_path):
    return make_shop(request, request.param, tmp_path)


def test_a_transaction_that_takes_its_time_and_answers_is_left_alone(any_shop, monkeypatch):
    """The twin: it is slow, but its time is not over."""
    monkeypatch.setattr(LIMIT, 30.0)
    (way,) = [way for way in WAYS if way.store == any_shop.store and way.dials_itself and not way.awaited]
    with any_shop.place.app() as app:
        assert way.call(any_shop.place, app, "17", during=lambda _: threading.Event().wait(1.5)) == "reserved 17"
    assert (any_shop.stock(), any_shop.steps()) == BOTH


def test_one_that_waits_for_something_else_is_taken_over_and_its_own_commit_refused(any_shop, monkeypatch):
    """Its connection is cut, but it does not notice: it is no longer renewed, and whoever comes does the work."""
    monkeypatch.setattr(LIMIT, 0.2)
    monkeypatch.setattr("twiceproof.flows.transaction.GRACE", 0.2)
    (way,) = [way for way in WAYS if way.store == any_shop.store and way.dials_itself and not way.awaited]
    goes_on, stuck, box = threading.Event(), threading.Event(), []

    def hang(_):
        stuck.set()
        goes_on.wait(PATIENCE)

    with any_shop.place.app() as app, any_shop.place.app() as other:
        call = lambda: box.append(outcome(way.call, any_shop.place, app, "17", during=hang))  # noqa: E731
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        assert stuck.wait(PATIENCE)
        until = time.monotonic() + PATIENCE
        while app.runtime.heartbeat._holds and time.monotonic() < until:
            threading.Event().wait(0.02)
        assert not app.runtime.heartbeat._holds
        if any_shop.store == "sqlite":  # where the file has one writer, the lock is its own until it is told
            goes_on.set()
            thread.join(PATIENCE)
        any_shop.place.advance(3600.0)
        monkeypatch.setattr(LIMIT, 30.0)
        assert way.call(any_shop.place, other, "17") == "reserved 17"
        goes_on.set()
        thread.join(PATIENCE)
    assert any_shop.stock() == ["17"]


def test_a_statement_of_sqlite_that_does_not_end_is_interrupted(tmp_path, request):
    shop = make_shop(request, "sqlite", tmp_path)
    (way,) = [way for way in WAYS if way.store == "sqlite" and way.dials_itself and not way.awaited]
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with shop.place.app() as app, pytest.raises(TimeoutError, match="did not end within"):
        way.call(shop.place, app, "17", during=lambda db: db.execute(endless).fetchone(), timeout=0.3)
    assert shop.stock() == []
