"""Work that lands in one process wakes who watches its queue in another; or they know that they cannot rely on it."""

import threading

import pytest

from twiceproof.records import Address, Insert, Replace
from twiceproof.stores.notifications import queue_channel
from twiceproof.stores.open import open_store
from twiceproof.stores.postgres.engine import PostgresEngine
from twiceproof.stores.postgres.notify import UNRELIABLE, PostgresListener

PATIENT = 15.0
HERE = Address("t/order/17", "claim", "self")


SERVERS = [pytest.param(name, marks=pytest.mark.server) for name in ("postgres_dsn", "redis_url")]


@pytest.fixture(params=["sqlite", *SERVERS])
def stores(request, tmp_path):
    """Two stores on one place, as in two processes."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/ledger.db" if sqlite else request.getfixturevalue(request.param)
    both = [open_store(url) for _ in range(2)]
    yield both
    for store in both:
        store.close()


def listening(store):
    """A watch that is known to hear."""
    watch = store.watch([queue_channel("q")])
    for _ in range(1_000):
        watch.wait(0.01)
        if store.engine.listen(store.changes.notify_matching) is None:
            watch.wait(0.2)  # what is left of the ring with which listening began
            return watch
    raise AssertionError("It never came to hear.")


class Waiting:
    def __init__(self, watch):
        self.woken = threading.Event()
        threading.Thread(target=lambda: (watch.wait(60.0), self.woken.set()), daemon=True).start()


def test_a_start_in_one_process_wakes_a_watch_in_another(stores):
    here, there = stores
    watch = listening(here)
    waiting = Waiting(watch)
    there.write(Insert(HERE, "", "queued", draw=True, queue="q", due_in=0.0)).block()
    assert waiting.woken.wait(PATIENT)
    again = Waiting(watch)
    version = there.read(HERE).block().record.version
    there.write(Replace(HERE, "", "queued", version=version, draw=True, queue="q", due_in=0.0)).block()
    assert again.woken.wait(PATIENT)


@pytest.mark.parametrize("stores", SERVERS, indirect=True)  # SQLite cannot say what was changed: everybody looks
def test_what_is_given_to_one_queue_does_not_wake_those_who_watch_another(stores):
    here, there = stores
    waiting = Waiting(listening(here))
    there.write(Insert(HERE, "", "queued", draw=True, queue="other", due_in=0.0)).block()
    assert not waiting.woken.wait(0.3)
    there.write(Insert(Address("s", "claim", "self"), "", "queued", draw=True, queue="q", due_in=0.0)).block()
    assert waiting.woken.wait(PATIENT)


def test_a_process_does_not_take_its_own_commits_to_the_file_for_those_of_others(tmp_path):
    here, there = (open_store(f"sqlite:///{tmp_path}/ledger.db") for _ in range(2))
    before = here.engine._data_version()
    here.write(Insert(HERE, "")).block()
    assert here.engine._data_version() == before
    there.write(Insert(Address("s", "k", "k"), "")).block()
    assert here.engine._data_version() != before
    here.close()
    there.close()


@pytest.mark.server
def test_a_listener_that_hears_no_echo_does_not_vouch_for_hearing(postgres_dsn):
    """As behind a transaction pooler, where LISTEN succeeds and nothing ever comes."""
    engine = PostgresEngine(postgres_dsn)
    began = threading.Event()
    deaf = PostgresListener(engine._connect, lambda sql, values: began.set())
    assert deaf.start(lambda meant: None) == UNRELIABLE
    assert began.wait(PATIENT)
    assert deaf.start(lambda meant: None) == UNRELIABLE
    deaf.close()
    engine.close()


@pytest.mark.server
def test_a_listener_whose_connection_broke_no_longer_vouches_for_hearing(postgres_dsn, fault_proxy):
    from psycopg.conninfo import conninfo_to_dict

    target = conninfo_to_dict(postgres_dsn)
    proxy = fault_proxy(target["host"], int(target["port"]))
    store = open_store(proxy.url(postgres_dsn))
    waiting = Waiting(listening(store))
    proxy.close()
    assert waiting.woken.wait(PATIENT)
    assert store.engine.listen(store.changes.notify_matching) == UNRELIABLE
    store.close()


def test_without_a_thread_nobody_relies_on_hearing_and_the_next_one_is_tried(stores, monkeypatch):
    """A hint is no reason to fail: who waits looks by itself, and the store can be closed."""
    here, _ = stores
    start = threading.Thread.start

    def exhausted(thread):
        if thread.name in ("twiceproof-listen", "twiceproof-watch"):
            raise RuntimeError("can't start new thread")
        start(thread)

    watch = here.watch([queue_channel("q")])
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", exhausted)
        here.pause("space", 0.001).block()
        watch.wait(0.001)
        assert here.engine.listen(here.changes.notify_matching) == UNRELIABLE
    listening(here)


def test_a_store_closes_whose_listener_never_had_a_thread(stores, monkeypatch):
    def exhausted(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", exhausted)
    stores[0].pause("space", 0.001).block()
    stores[0].close()
