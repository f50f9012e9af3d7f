"""Queues on real servers, made for one test each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json

import aio_pika
import boto3
import nats
from nats.js.api import ConsumerConfig, StreamConfig

from tests.servers.toxics import OneWay
from twiceproof.brokers.base import Ack, OutgoingMessage
from twiceproof.brokers.nats import NatsBroker
from twiceproof.brokers.rabbitmq import RabbitBroker
from twiceproof.brokers.redis_streams import RedisStreamBroker
from twiceproof.brokers.service_bus import ServiceBusBroker
from twiceproof.brokers.sqs import SqsBroker

numbers = itertools.count()


class ThroughProxy:
    """The hooks of the contract for a server behind a proxy."""

    def lose_answers(self):
        self.proxy.arm(OneWay("reply", fresh=10))

    def heal(self):
        self.proxy.disarm()
        self.proxy.cut()


@contextlib.contextmanager
def opening(kind):
    """Makes a function that opens brokers; they are closed afterwards."""
    opened = []

    def make(url):
        opened.append(kind(url))
        return opened[-1]

    yield make
    for broker in opened:
        broker.close()


class Place:
    """Where to publish, where to receive from, and how to open a broker there."""

    def __init__(self, server):
        self.server = server
        self.name = f"orders-{next(numbers)}"
        self.create()

    @property
    def url(self):
        return self.server.url

    def open(self, url=""):
        return self.kind(url or self.url)

    def message(self, key, **more):
        return OutgoingMessage(**{"place": self.place, "topic": self.topic, "key": key, "body": b"{}", **more})

    def keys_now(self, broker):
        """As `keys`, for a broker on which nothing is published any more."""
        return self.keys(broker, 0.1)

    def keys(self, broker, quiet=1.0):
        """Receive and acknowledge all, until nothing comes for so long."""
        found = []
        while batch := broker.receive(self.source, 200, quiet):
            broker.settle([(delivery, Ack()) for delivery in batch])
            found += [delivery.key for delivery in batch]
        return found


class RabbitPlace(Place):
    kind, nowhere = RabbitBroker, "no-such-exchange"

    def __init__(self, server, durable=True, **arguments):
        self.durable = durable
        self.arguments = {"x-queue-type": "quorum", **arguments}
        super().__init__(server)

    def create(self):
        self.place, self.topic, self.source = f"x-{self.name}", self.name, self.name
        asyncio.run(self._create())

    def delete_exchange(self):
        asyncio.run(self._on_channel(lambda channel: channel.exchange_delete(self.place)))

    def delete_queue(self):
        asyncio.run(self._on_channel(lambda channel: channel.queue_delete(self.source)))

    async def _create(self):
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(self.place, durable=True)
            queue = await channel.declare_queue(self.source, durable=self.durable, arguments=self.arguments)
            await queue.bind(exchange, self.topic)

    async def _on_channel(self, work):
        async with await aio_pika.connect(self.url) as connection:
            await work(await connection.channel())


class NatsPlace(Place):
    kind, nowhere, topic = NatsBroker, "no.such.subject", ""

    def __init__(self, server, ack_wait=1.0, **more):
        self.ack_wait, self.more = ack_wait, more
        super().__init__(server)

    def create(self):
        self.place, self.source = f"{self.name}.paid", f"{self.name}/work"
        asyncio.run(self._create())

    async def _create(self):
        client = await nats.connect(self.url)
        jetstream = client.jetstream()
        await jetstream.add_stream(StreamConfig(self.name, subjects=[f"{self.name}.*"], **self.more))
        await jetstream.add_consumer(
            self.name, ConsumerConfig("work", durable_name="work", ack_wait=self.ack_wait, max_ack_pending=10_000)
        )
        await client.close()


class RedisPlace(Place):
    nowhere, topic = "no-such-stream", ""

    @property
    def url(self):
        return self.server.url.replace("redis:", "redis+stream:", 1)

    def open(self, url=""):
        return RedisStreamBroker(url or self.url, lease=1.0)

    def create(self):
        self.place, self.source = self.name, f"{self.name}/work"
        self.server.call("XGROUP", "CREATE", self.place, "work", "0", "MKSTREAM")


class SqsPlace(Place):
    """A FIFO queue, or a standard one. `dead`: a queue for its dead letters is made, too."""

    nowhere, topic, ending = "no-such-queue.fifo", "", ".fifo"

    def __init__(self, server, lease=1, *, dead=False, **attributes):
        self.lease, self.dead, self.attributes = lease, dead, attributes
        super().__init__(server)

    @property
    def client(self):
        login = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        return boto3.client("sqs", endpoint_url=self.server.endpoint, **login)

    def open(self, url=""):
        return SqsBroker(url or self.url)

    def create(self):
        self.place = self.source = f"{self.name}{self.ending}"
        fifo = {"FifoQueue": "true"} if self.ending else {}
        attributes = {"VisibilityTimeout": str(self.lease), **fifo, **self.attributes}
        if self.dead:
            dead = self.client.create_queue(QueueName=f"dead-{self.place}", Attributes=fifo)
            found = self.client.get_queue_attributes(QueueUrl=dead["QueueUrl"], AttributeNames=["QueueArn"])
            policy = {"deadLetterTargetArn": found["Attributes"]["QueueArn"], "maxReceiveCount": 9}
            attributes["RedrivePolicy"] = json.dumps(policy)
        self.queue_url = self.client.create_queue(QueueName=self.place, Attributes=attributes)["QueueUrl"]


class StandardSqsPlace(SqsPlace):
    nowhere, ending = "no-such-queue", ""


class ServiceBusPlace(Place):
    """A queue of the simulator, or a topic with one subscription."""

    kind, nowhere, topic = ServiceBusBroker, "no-such-queue", ""

    def __init__(self, server, lease=1.0, *, subscribed=False, **settings):
        self.settings = {"lock_seconds": lease, "max_deliveries": 1_000, **settings}
        self.subscribed = subscribed
        super().__init__(server)

    def create(self):
        self.place = self.source = self.name
        if self.subscribed:
            self.source = f"{self.name}/Subscriptions/work"
            (self.queue,) = self.server.create_topic(self.name, "work", **self.settings)
        else:
            self.queue = self.server.create_queue(self.name, **self.settings)
