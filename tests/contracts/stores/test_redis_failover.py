"""The Redis store when a replica takes over the address: what was acknowledged may be gone, and it says so."""

import pytest

from tests.servers import FaultProxy, ValkeyServer
from tests.servers.replicas import follow, promote
from twiceproof.errors import StoreUnavailable, StoreUnsafe
from twiceproof.records import Address, Insert, Replace, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.open import accept_server
from twiceproof.stores.redis.engine import RedisEngine

pytestmark = pytest.mark.server

AT = Address("shop/order:1", "claim", "self")


def claim(at=AT):
    return Insert(at, "mine", state="held", draw=True, lease=30.0)


@pytest.fixture
def pair(killable_valkey):
    """A server, another that will follow it, and an address that leads to the first."""
    with ValkeyServer() as other, FaultProxy(killable_valkey.host, killable_valkey.port) as address:
        yield killable_valkey, other, address


@pytest.fixture
def opened(pair):
    """Opens stores by the address, and closes them after the test."""
    stores = []

    def open_(durability="full"):
        url = pair[2].url(pair[0].url)
        stores.append(GroupedStore(RedisEngine(f"{url}?durability={durability}"), patience=1.0))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def take_over(pair):
    """The replica is promoted, and the address leads to it."""
    master, replica, address = pair
    follow(replica, master)
    promote(replica)
    address.lead_to(replica.host, replica.port)


def test_a_replica_that_took_over_is_refused_by_a_store_that_is_open(pair, opened):
    store = opened()
    assert isinstance(store.write(claim()).block(), Written)
    take_over(pair)
    for ask in (lambda: store.read(AT).block(), lambda: store.write(claim()).block()):
        with pytest.raises(StoreUnsafe, match="--accept-server") as refused:
            ask()
    assert refused.value.findings[0].name == "failover"


def test_a_replica_that_took_over_is_refused_at_opening(pair, opened):
    opened().write(claim()).block()
    take_over(pair)
    with pytest.raises(StoreUnsafe, match="took over"):
        opened()


def test_an_empty_replica_that_took_over_is_refused_by_whoever_knew_its_master(pair, opened):
    store = opened()
    store.write(claim()).block()
    follow(pair[1], pair[0])
    promote(pair[1])
    pair[1].empty()
    pair[2].lead_to(pair[1].host, pair[1].port)
    with pytest.raises(StoreUnsafe):
        store.read(AT).block()


def test_a_write_that_was_on_its_way_is_unknown_and_the_next_one_refused(pair, opened):
    store = opened()
    store.read(AT).block()
    take_over(pair)
    with pytest.raises(StoreUnavailable, match="StoreUnsafe") as unknown:
        store.write(claim()).block()
    assert unknown.value.unsure
    with pytest.raises(StoreUnsafe):
        store.write(claim()).block()


@pytest.mark.parametrize("by_a_setting", [False, True])
def test_accepted_once_the_server_is_served_again_and_no_fence_is_drawn_twice(pair, opened, by_a_setting):
    store = opened()
    before = store.write(claim()).block()
    take_over(pair)
    with pytest.raises(StoreUnsafe):
        store.read(AT).block()
    if by_a_setting:
        opened("cache")
    else:
        accept_server(pair[2].url(pair[0].url))
    after = store.write(Replace(AT, "mine", fence=before.fence, draw=True)).block()
    assert after.fence > before.fence + 900_000
    assert opened().read(AT).block().record.fence == after.fence


def test_a_store_that_may_lose_writes_goes_on(pair, opened):
    store = opened("cache")
    store.write(claim()).block()
    take_over(pair)
    assert isinstance(store.write(claim(Address("shop/order:2", "claim", "self"))).block(), Written)


def test_a_restarted_server_is_not_taken_for_a_replica_that_took_over(pair, opened):
    """The twin: the same server, from its own file, has lost nothing."""
    store = opened()
    before = store.write(claim()).block()
    pair[0].call("BGREWRITEAOF")
    pair[0].kill()
    pair[0].start()
    assert store.read(AT).block().record.fence == before.fence
    assert opened().read(AT).block().record.fence == before.fence


def test_a_master_that_followed_another_has_that_ones_data_and_is_refused(pair, opened):
    """Back in its role, the same process holds what it was sent meanwhile."""
    store = opened()
    store.write(claim()).block()
    follow(pair[0], pair[1])
    promote(pair[0])
    pair[2].cut()
    with pytest.raises(StoreUnsafe):
        store.read(AT).block()


def test_a_server_that_was_promoted_before_the_store_was_created_is_as_good_as_any(pair, opened):
    take_over(pair)
    store = opened()
    assert isinstance(store.write(claim()).block(), Written)
    assert opened().read(AT).block().record is not None
