"""A pause ends early when another process changes something, and simply ends where it cannot be told."""

import os
import socket
import threading
import time

import pytest
from psycopg.conninfo import conninfo_to_dict

from twiceproof.operations import block
from twiceproof.records import Address, Insert, Remove, Replace
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres.engine import PostgresEngine
from twiceproof.stores.postgres.notify import MOST_SPACES, PostgresNotifier, meant_by

pytestmark = pytest.mark.server

HERE = Address("space", "claim", "self")
LONG = 30.0


def paused(store, space):
    """A thread that pauses on the space until it is woken; before notifications are received it would be by time."""
    block(iter(store.pause(space, 0.001)))
    wait_until(lambda: store.engine._listener._receives)
    thread = threading.Thread(target=lambda: block(iter(store.pause(space, LONG))))
    thread.start()
    wait_until(lambda: store.changes)
    return thread


@pytest.fixture
def stores(postgres_dsn):
    both = [GroupedStore(PostgresEngine(postgres_dsn)) for _ in range(2)]
    yield both
    for store in both:
        store.close()


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        threading.Event().wait(0.005)
    assert condition()


@pytest.mark.parametrize("end", ["replace", "remove"])
def test_a_pause_ends_when_the_claim_ends_in_another_process(stores, end):
    one, two = stores
    held = two.write(Insert(HERE, "", draw=True)).block()
    thread = paused(one, "space")
    write = Remove(HERE, fence=held.fence)
    two.write(write if end == "remove" else Replace(HERE, "", fence=held.fence, draw=True)).block()
    thread.join(10)
    assert not thread.is_alive()


def test_a_heartbeat_wakes_nobody(stores):
    one, two = stores
    held = two.write(Insert(HERE, "", draw=True)).block()
    thread = paused(one, "space")
    two.write(Replace(HERE, "", fence=held.fence, lease=30.0)).block()
    two.write(Insert(Address("elsewhere", "claim", "self"), "", draw=True)).block()
    thread.join(0.2)
    assert thread.is_alive()
    two.write(Remove(HERE, fence=held.fence)).block()
    thread.join(10)
    assert not thread.is_alive()


def test_a_process_with_a_thousand_open_files_hears_all_the_same(stores):
    """`select` knows only the first 1,024 of them."""
    one, _ = stores
    pair = socket.socketpair()
    try:
        many = [os.dup(pair[0].fileno()) for _ in range(1_100)]
    except OSError:
        pytest.skip("this process may not open so many files")
    try:
        one.pause("space", 0.001).block()
        wait_until(lambda: one.engine._listener._receives)
    finally:
        for number in many:
            os.close(number)
        for end in pair:
            end.close()


def test_a_listener_that_lost_its_connection_listens_again_and_has_everyone_look(postgres_dsn, fault_proxy):
    target = conninfo_to_dict(postgres_dsn)
    proxy = fault_proxy(target["host"], int(target["port"]))
    store = GroupedStore(PostgresEngine(proxy.url(postgres_dsn)))
    thread = paused(store, "space")
    proxy.cut()
    thread.join(10)
    assert not thread.is_alive()
    store.close()


def test_behind_a_pooler_a_pause_ends_by_itself(pgbouncer, postgres_dsn):
    store = GroupedStore(PostgresEngine(pgbouncer.dsn(postgres_dsn)))
    block(iter(store.pause("space", 0.01)))
    block(iter(store.pause("space", 0.01)))
    store.close()


def test_closing_ends_the_threads_and_another_pause_starts_them_again(stores):
    one, _ = stores
    one.write(Insert(HERE, "", draw=True)).block()
    for _ in range(2):
        block(iter(one.pause("space", 0.01)))
        one.write(Remove(HERE, version=one.read(HERE).block().record.version)).block()
        one.write(Insert(HERE, "", draw=True)).block()
        assert {"twiceproof-listen", "twiceproof-notify"} <= names()
        one.engine.close()
    assert not {"twiceproof-listen", "twiceproof-notify"} & names()


def names():
    return {thread.name for thread in threading.enumerate()}


def test_changes_are_told_together_and_many_as_everyone():
    told, hurry = [], threading.Event()

    def ask(sql, values):
        told.append(values[0].decode())
        hurry.wait(10)

    notifier = PostgresNotifier(ask, lambda seconds: None)
    notifier.tell(["a"])
    wait_until(lambda: told)
    notifier.tell(["b", "c"])
    notifier.tell(["c", "d"])
    hurry.set()
    wait_until(lambda: len(told) == 2)
    notifier.tell(str(n) for n in range(MOST_SPACES + 1))
    wait_until(lambda: len(told) == 3)
    notifier.close()
    assert meant_by(told[0])("a") and not meant_by(told[0])("b")
    assert all(meant_by(told[1])(space) for space in "bcd") and not meant_by(told[1])("a")
    assert meant_by(told[2])("anything")
