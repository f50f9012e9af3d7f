"""RabbitMQ keeps the contract, with quorum queues and with classic ones. Checked against Debian's 3.10."""

from __future__ import annotations

import asyncio
import itertools

import aio_pika
import pytest

from tests.servers.toxics import OneWay
from twiceproof.brokers.rabbitmq import RabbitBroker
from twiceproof.prove.broker_contract import BrokerContract

numbers = itertools.count()


async def _declare(url, queue, kind):
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("orders", durable=True)
        declared = await channel.declare_queue(queue, durable=True, arguments={"x-queue-type": kind})
        await declared.bind(exchange, queue)


@pytest.mark.server
@pytest.mark.slow
class TestQuorumQueue(BrokerContract):
    kind = "quorum"
    soon = 20.0

    @pytest.fixture(autouse=True)
    def server(self, rabbit_server, fault_proxy):
        self.proxy = fault_proxy(rabbit_server.host, rabbit_server.port)
        self.url = self.proxy.url(rabbit_server.url)
        self.topic = self.source = f"orders-{next(numbers)}"
        asyncio.run(_declare(rabbit_server.url, self.source, self.kind))

    def make_broker(self):
        return RabbitBroker(self.url)

    open_again = make_broker

    def lose_answers(self):
        self.proxy.arm(OneWay("reply", fresh=10))

    def heal(self):
        self.proxy.disarm()
        self.proxy.cut()


class TestClassicQueue(TestQuorumQueue):
    kind = "classic"
    counts = False
