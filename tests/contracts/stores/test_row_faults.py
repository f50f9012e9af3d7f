"""Stores of rows when their server is away, hangs up, or stands still past the end of a lease."""

import os
import signal
import threading

import pytest

from tests.contracts.stores.row_places import killable_place, place  # noqa: F401
from twiceproof.records import Address, Conflict, Insert, Replace, Written

pytestmark = pytest.mark.server

HERE, BESIDE = Address("shop/order:1", "claim", "self"), Address("shop/order:2", "claim", "self")


@pytest.fixture
def proxy(place, fault_proxy):  # noqa: F811
    return fault_proxy(place.server.host, place.server.port)


@pytest.fixture
def store(place, proxy):  # noqa: F811
    store = place.open(place.url_by(proxy.host, proxy.port))
    yield store
    store.close()


def test_a_server_that_is_away_for_a_moment_costs_no_error(store, proxy):
    """Also one that takes no more connections: it refuses them."""
    proxy.refuse()
    proxy.cut()
    threading.Timer(0.3, proxy.accept).start()
    assert isinstance(store.write(Insert(HERE, "")).block(), Written)


def test_connections_that_were_cut_are_made_anew(store, proxy):
    store.write(Insert(HERE, "")).block()
    proxy.cut()
    assert isinstance(store.write(Insert(BESIDE, "")).block(), Written)
    assert store.read(HERE).block().record is not None


def stand_still(server, number):
    for pid in [member.pid for member in getattr(server, "members", [server])]:
        os.kill(pid, number)


def test_a_server_that_was_stopped_past_the_lease_has_one_holder(killable_place):  # noqa: F811
    """The answer comes when the lease may be over: then another takes it, and the first writes nothing any more."""
    store, other = killable_place.open(), killable_place.open()
    store.read(HERE).block()
    stand_still(killable_place.server, signal.SIGSTOP)
    threading.Timer(1.0, stand_still, [killable_place.server, signal.SIGCONT]).start()
    landed = store.write(Insert(HERE, "mine", "held", draw=True, lease=0.5)).block()
    assert isinstance(landed, Written)
    found = other.read(HERE).block().record
    assert (found.body, found.fence, found.version) == ("mine", landed.fence, landed.version)
    taken = other.write(Replace(HERE, "theirs", "held", version=found.version, draw=True, lease=30.0)).block()
    assert isinstance(taken, Written) and taken.fence > landed.fence
    late = store.write(Replace(HERE, "late", "done", fence=landed.fence, draw=True)).block()
    assert isinstance(late, Conflict) and late.found.body == "theirs"
    for each in (store, other):
        each.close()
