"""The Redis store keeps the contract, on one server and on a cluster of three."""

import pytest

from tests.contracts.stores.movable_redis import MovableRedisEngine
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.prove.store_contract.due import DueRecords, HiddenRecords
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.redis import engine as redis_due


class RedisContract(DurableStoreContract):
    url: str

    def make_store(self):
        self.engine = MovableRedisEngine(self.url)
        return GroupedStore(self.engine)

    open_again = make_store

    def advance(self, seconds):
        self.engine.advance(seconds)


@pytest.mark.server
class TestRedis(RedisContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url


@pytest.mark.server
class TestRedisCluster(RedisContract):
    @pytest.fixture(autouse=True)
    def server(self, cluster_url):
        self.url = cluster_url


class HeadsContract(DueRecords, HiddenRecords):
    """Few queues are looked at one by one; here, they are found by their heads, as many are."""

    make_store = RedisContract.make_store
    advance = RedisContract.advance

    @pytest.fixture(autouse=True)
    def by_heads(self, monkeypatch):
        monkeypatch.setattr(redis_due, "FEW", -1)


@pytest.mark.server
class TestRedisHeads(HeadsContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url


@pytest.mark.server
class TestRedisClusterHeads(HeadsContract):
    @pytest.fixture(autouse=True)
    def server(self, cluster_url):
        self.url = cluster_url
