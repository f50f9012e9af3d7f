"""NATS JetStream keeps the contract."""

from __future__ import annotations

import asyncio
import itertools

import nats
import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from tests.servers.toxics import OneWay
from twiceproof.brokers.nats import NatsBroker
from twiceproof.prove.broker_contract import LeasedBrokerContract

numbers = itertools.count()


async def create(url, stream, subject, ack_wait=1.0, **more):
    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(StreamConfig(stream, subjects=[subject], **more))
    await jetstream.add_consumer(stream, ConsumerConfig("work", durable_name="work", ack_wait=ack_wait))
    await client.close()


@pytest.mark.server
@pytest.mark.slow
class TestNats(LeasedBrokerContract):
    nowhere = "no.such.subject"

    @pytest.fixture(autouse=True)
    def server(self, nats_server, fault_proxy):
        self.proxy = fault_proxy(nats_server.host, nats_server.port)
        self.url = self.proxy.url(nats_server.url)
        stream = f"orders-{next(numbers)}"
        self.place, self.source = f"{stream}.paid", f"{stream}/work"
        asyncio.run(create(nats_server.url, stream, f"{stream}.*", self.lease))

    def make_broker(self):
        return NatsBroker(self.url)

    open_again = make_broker

    def lose_answers(self):
        self.proxy.arm(OneWay("reply", fresh=10))

    def heal(self):
        self.proxy.disarm()
        self.proxy.cut()
