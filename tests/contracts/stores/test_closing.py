"""Closing a store takes a bounded time, whatever the network does: it waits for commits, not for wake-ups and reads."""

import asyncio
import contextlib
import threading
import time
from urllib.parse import urlsplit

import pytest

from tests.contracts.stores.row_places import PLACES
from tests.servers.toxics import MANY, OneWay
from twiceproof import App
from twiceproof.claims.retention import sweep
from twiceproof.errors import StoreUnavailable
from twiceproof.operations import block
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.mariadb.engine import MariadbEngine
from twiceproof.stores.open import open_store
from twiceproof.stores.postgres.engine import PostgresEngine
from twiceproof.stores.redis.engine import RedisEngine

pytestmark = pytest.mark.server

HERE = Address("space", "claim", "self")
THERE = Address("elsewhere", "claim", "self")
PATIENCE = 2.0
SOON = 5.0  # generous: three times a second's grace, and some connecting
SILENCES = {
    "no replies": lambda: OneWay("reply", fresh=MANY),
    "no requests": lambda: OneWay("request", fresh=MANY),
}


ENGINES = {
    "postgres": ("postgres_dsn", PostgresEngine),
    "redis": ("redis_url", RedisEngine),
    "mariadb": ("mariadb_url", MariadbEngine),
}


@pytest.fixture(params=[*ENGINES, *PLACES])
def place(request, fault_proxy):
    """An address by way of a proxy, and what opens a store there."""
    if request.param in PLACES:
        make, server, _ = PLACES[request.param]
        rows = make(request, server)
        proxy = fault_proxy(rows.server.host, rows.server.port)
        url = rows.url_by(proxy.host, proxy.port)
        return proxy, lambda: GroupedStore(open_store(url).engine, patience=PATIENCE)
    name, engine = ENGINES[request.param]
    url = request.getfixturevalue(name)
    target = urlsplit(url)
    proxy = fault_proxy(target.hostname, target.port)
    return proxy, lambda: GroupedStore(engine(proxy.url(url)), patience=PATIENCE)


@pytest.fixture(params=SILENCES)
def silence(request, place):
    """From now on, on every connection, old or new."""
    toxic = SILENCES[request.param]()
    yield lambda: place[0].arm(toxic)
    place[0].disarm()


@pytest.fixture
def store(place):
    """With every connection open."""
    store = place[1]()
    store.write(Insert(HERE, "", draw=True)).block()
    store.read(HERE).block()
    store.scan("claim").block()
    yield store
    store.close()


def aside(work):
    """Somebody else's thread; whether it was given an error is theirs."""

    def run():
        with contextlib.suppress(StoreUnavailable):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def seconds_to_close(closes):
    began = time.monotonic()
    closes.close()
    return time.monotonic() - began


def under_way(proxy):
    """The proxy has swallowed something."""
    end = time.monotonic() + 10
    while not proxy._toxic.bites and time.monotonic() < end:
        time.sleep(0.001)
    assert proxy._toxic.bites


def ask_awaiting(store):
    """A scan by an event loop, which is left to the store's own thread; its caller has gone."""

    async def ask():
        scan = asyncio.ensure_future(store.scan("claim").wait())
        await asyncio.sleep(0)
        scan.cancel()

    asyncio.run(ask())


READS = {
    "a scan": lambda store: aside(store.scan("claim").block),
    "a scan of an event loop's": ask_awaiting,
    "what is due": lambda store: aside(store.due("claim", queues=("q",)).block),
    "a read": lambda store: aside(store.read(HERE).block),
    "a sweep": lambda store: aside(lambda: block(sweep(store))),
}


@pytest.mark.parametrize("ask", READS)
def test_closing_does_not_wait_for_what_only_listens_or_reads(place, store, silence, ask):
    silence()
    READS[ask](store)
    under_way(place[0])
    assert seconds_to_close(store) < SOON


@pytest.mark.parametrize("place", ["postgres", "redis"], indirect=True)
def test_closing_does_not_wait_for_a_listener_that_begins(place, store, silence):
    silence()
    store.pause("space", 0.001).block()
    under_way(place[0])
    assert seconds_to_close(store) < SOON


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_closing_does_not_wait_for_a_hint_to_others(place, store, silence):
    """On Redis they go with the commit."""
    silence()
    store.engine._notifier.tell(["space"])
    under_way(place[0])
    assert seconds_to_close(store) < SOON


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_whoever_still_asks_hears_that_the_store_was_closed(place, store, silence):
    told = []

    def ask():
        try:
            store.scan("claim").block()
        except StoreUnavailable as error:
            told.append(str(error))

    silence()
    asking = aside(ask)
    under_way(place[0])
    store.close()
    asking.join(SOON)
    assert len(told) == 1
    assert "closed" in told[0]


def test_a_read_that_is_answered_in_a_moment_is_waited_for(place, store):
    """The twin: a network that is only slow."""
    proxy, _ = place
    found = []
    proxy.delay = 0.1
    reading = aside(lambda: found.append(store.read(HERE).block()))
    while not store._reads.busy:
        time.sleep(0.001)
    store.close()
    reading.join(SOON)
    assert found[0].record.at == HERE


# -- commits -------------------------------------------------------------------------------------


def writing(store, outcomes):
    def write():
        try:
            outcomes.append(store.write(Insert(THERE, "", draw=True)).block())
        except StoreUnavailable as error:
            outcomes.append(error)

    return aside(write)


@pytest.fixture
def patient(monkeypatch):
    """More so than a machine is slow."""
    monkeypatch.setattr(f"{__name__}.PATIENCE", 30.0)


def test_a_commit_under_way_is_waited_for(patient, place, store):
    proxy, open_ = place
    outcomes = []
    proxy.hold(requests=False)
    write = writing(store, outcomes)
    while not store._writes.busy:
        time.sleep(0.001)
    threading.Timer(1.0, proxy.resume).start()
    store.close()
    write.join(SOON)
    assert isinstance(outcomes[0], Written)
    again = open_()
    assert again.read(THERE).block().record.fence == outcomes[0].fence
    again.close()


def test_a_commit_is_waited_for_until_patience_runs_out_and_is_then_unknown(place, store, silence):
    outcomes = []
    silence()
    write = writing(store, outcomes)
    under_way(place[0])
    took = seconds_to_close(store)
    assert PATIENCE / 2 < took < PATIENCE + SOON
    write.join(2 * SOON)
    assert outcomes[0].unsure


# -- workers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize("end", ["drain", "stop"])
def test_a_worker_that_is_told_to_end_does_not_wait_for_what_is_due(place, silence, end):
    proxy, open_ = place
    with App(open_()) as app:

        @app.flow(key="k:{n}")
        def ship(n):
            return n

        worker = app.worker()
        left = []
        working = threading.Thread(target=lambda: left.append(worker.run()), daemon=True)
        working.start()
        while not worker._turn:
            time.sleep(0.001)
        silence()
        worker.wake()
        under_way(proxy)
        getattr(worker, end)()
        working.join(SOON)
        assert left == [0]


# -- the app -------------------------------------------------------------------------------------


@pytest.mark.parametrize("silence", ["no replies"], indirect=True)
def test_an_app_closes_while_it_sweeps_beats_and_counts(place, silence, caplog):
    """Whatever it has on threads of its own: none is waited for longer than a moment, and none complains afterwards."""
    others = set(threading.enumerate())
    app = App(place[1]())

    @app.once(key="k:{n}")
    def twice(n):
        return n

    assert [twice(1), twice(1)] == [1, 1]  # a duplicate, to be counted
    with pytest.raises(StoreUnavailable), app.claim("hold", "one", lease=0.6):  # a claim that is kept alive
        silence()
        under_way(place[0])
        app._housekeeper._swept_at = float("-inf")
        app._housekeeper.sweep_if_due()
        took = seconds_to_close(app)
        lines = complaints(caplog)
    assert took < PATIENCE + 2 * SOON
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("twiceproof"):
            thread.join(2 * SOON)
            assert not thread.is_alive()
    assert complaints(caplog) == lines


def complaints(caplog):
    """Not those of processes that other tests have simulated to be killed: their timers go on, as they never closed."""
    return [record.getMessage() for record in caplog.records if not record.getMessage().endswith(": killed")]
