"""Redis Streams keep the contract. Checked against Valkey."""

from __future__ import annotations

import itertools

import pytest

from tests.servers.toxics import OneWay
from twiceproof.brokers.redis_streams import RedisStreamBroker
from twiceproof.prove.broker_contract import LeasedBrokerContract

numbers = itertools.count()


@pytest.mark.server
@pytest.mark.slow
class TestRedisStreams(LeasedBrokerContract):
    @pytest.fixture(autouse=True)
    def server(self, valkey_server, fault_proxy):
        parts = valkey_server.url.removeprefix("redis://").rpartition("@")[2].partition("/")[0].partition(":")
        self.proxy = fault_proxy(parts[0], int(parts[2]))
        self.url = self.proxy.url(valkey_server.url).replace("redis:", "redis+stream:", 1)
        self.place = f"orders-{next(numbers)}"
        self.source = f"{self.place}/work"
        valkey_server.call("XGROUP", "CREATE", self.place, "work", "0", "MKSTREAM")

    def make_broker(self):
        return RedisStreamBroker(self.url, lease=self.lease)

    open_again = make_broker

    def lose_answers(self):
        self.proxy.arm(OneWay("reply", fresh=10))

    def heal(self):
        self.proxy.disarm()
        self.proxy.cut()
