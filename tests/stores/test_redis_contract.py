"""The Redis store keeps the contract, on one server and on a cluster of three."""

import pytest

from tests.stores.movable_redis import MovableRedisEngine
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.stores.grouped import GroupedStore


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
