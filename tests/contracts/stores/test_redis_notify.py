"""A change in one process wakes who waits for it in another."""

import socket
import threading
import time

import pytest

from twiceproof.records import Address, Insert, Remove, Replace, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.redis.engine import RedisEngine
from twiceproof.stores.redis.url import IDLE

pytestmark = pytest.mark.server

AT = Address("shop/order:1", "claim", "self")
LONG = 20.0


@pytest.fixture
def stores(redis_url):
    """Two, as in two processes: they share nothing but the server."""
    stores = [GroupedStore(RedisEngine(redis_url)) for _ in range(2)]
    yield stores
    for store in stores:
        store.close()


def waiting(store, space):
    """Somebody waits there; the listener's own first ring, when it is connected, is over."""
    store.pause(space, LONG).block()
    waiter = threading.Thread(target=store.pause(space, LONG).block)
    waiter.start()
    while not store.changes.waiters:
        time.sleep(0.001)
    return waiter


@pytest.mark.parametrize("change", ["remove", "takeover"])
def test_a_change_of_hands_elsewhere_wakes_the_waiter(stores, change):
    here, elsewhere = stores
    fence = elsewhere.write(Insert(AT, "", draw=True)).block().fence
    waiter = waiting(here, AT.space)
    elsewhere.write(Remove(AT, fence=fence) if change == "remove" else Replace(AT, "", fence=fence, draw=True)).block()
    waiter.join(LONG / 2)
    assert not waiter.is_alive()


def test_a_heartbeat_or_another_space_wakes_nobody(stores):
    here, elsewhere = stores
    other = Address("shop/order:2", "claim", "self")
    fence = elsewhere.write(Insert(AT, "", draw=True)).block().fence
    waiter = waiting(here, AT.space)
    elsewhere.write(Replace(AT, None, fence=fence, lease=30.0)).block()
    theirs = elsewhere.write(Insert(other, "", draw=True)).block().fence
    elsewhere.write(Remove(other, fence=theirs)).block()
    waiter.join(0.1)
    assert waiter.is_alive()
    here.close()
    waiter.join(LONG / 2)
    assert not waiter.is_alive()


def test_a_listener_finds_out_within_seconds_that_the_other_end_is_silent(redis_url):
    engine = RedisEngine(redis_url)
    ear = engine._nodes.open_ear()
    told = [IDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
    idle, between, count = (ear._sock.getsockopt(socket.IPPROTO_TCP, option) for option in told)
    assert ear._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + between * count <= 15
    ear.close()
    engine.close()


def test_a_user_without_the_right_to_the_channel_loses_only_the_hint(killable_valkey):
    killable_valkey.call("ACL", "SETUSER", "joe", "on", ">x", "~twiceproof:*", "+@all", "resetchannels")
    store = GroupedStore(RedisEngine(killable_valkey.url.replace("redis://", "redis://joe:x@")))
    store.pause(AT.space, 0.001).block()
    fence = store.write(Insert(AT, "", draw=True)).block().fence
    assert isinstance(store.write(Remove(AT, fence=fence)).block(), Written)
    store.close()
