"""From a ledger to real brokers and back: each message arrives under its key, and what has no queue is parked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import boto3
import nats
import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from tests.servers.toxics import OneWay
from twiceproof import App, Retry
from twiceproof.brokers.base import Ack
from twiceproof.brokers.open import open_broker
from twiceproof.operations import block
from twiceproof.outbox.queries import list_messages, resend
from twiceproof.prove.simulators import ServiceBusSimulator

pytestmark = [pytest.mark.server, pytest.mark.slow]
COUNT = 120


async def rabbit_queue(url: str, queue: str) -> None:
    async with await aio_pika.connect(url) as connection:
        await (await connection.channel()).declare_queue(queue, durable=True)


async def nats_stream(url: str, stream: str) -> None:
    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(StreamConfig(stream, subjects=[stream]))
    await jetstream.add_consumer(stream, ConsumerConfig("work", durable_name="work"))
    await client.close()


async def sqs_queue(endpoint: str, queue: str) -> None:
    login = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    boto3.client("sqs", endpoint_url=endpoint, **login).create_queue(QueueName=queue, Attributes={"FifoQueue": "true"})


class Target:
    """A broker behind a proxy. `make` makes a place; `place` and `source` are its names for a route and a consumer."""

    def __init__(self, url: str, proxy: Any, make: Callable[[str], Any], place: str, source: str) -> None:
        self.url, self.proxy, self._make, self.place, self.source = url, proxy, make, place, source

    def make(self, name: str) -> None:
        asyncio.run(self._make(name))

    def received(self, name: str, count: int) -> list[Any]:
        broker = open_broker(self.url)
        found: list[Any] = []
        while len(found) < count and (some := broker.receive(self.source.format(name), 200, 5.0)):
            broker.settle([(one, Ack()) for one in some])
            found += some
        broker.close()
        return found


@pytest.fixture
def service_bus(fault_proxy: Any) -> Iterator[Target]:
    """Our simulator."""
    with ServiceBusSimulator() as simulator:
        proxy = fault_proxy("127.0.0.1", simulator.port)

        async def make(name: str) -> None:
            simulator.create_queue(name)

        yield Target(proxy.url(simulator.url), proxy, make, "{}", "{}")


@pytest.fixture(params=["rabbit", "nats", "sqs", "service_bus"])
def target(request: pytest.FixtureRequest, fault_proxy: Any) -> Target:
    if request.param == "service_bus":
        return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
    server = request.getfixturevalue(f"{request.param}_server")
    proxy = fault_proxy(server.host, server.port)
    url = proxy.url(server.url)
    if request.param == "sqs":
        return Target(url, proxy, lambda name: sqs_queue(server.endpoint, f"{name}.fifo"), "{}.fifo", "{}.fifo")
    if request.param == "rabbit":
        return Target(url, proxy, lambda name: rabbit_queue(server.url, name), "/queues/{}", "{}")
    return Target(url, proxy, lambda name: nats_stream(server.url, name), "{}", "{}/work")


def test_messages_reach_the_broker_in_order_and_what_has_no_place_is_parked(target: Target, tmp_path: Path) -> None:
    target.make("shop")  # tests of the contract have made an "orders" on the same server, of another kind
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        app.broker("main", target.url, retry=Retry(attempts=1))
        app.route("orders.paid", to="main", place=target.place.format("shop"))
        app.route("orders.lost", to="main", place=target.place.format("missing"))
        for n in range(COUNT):
            app.send("orders.paid", {"n": n}, key=f"m{n}", order="o" if n % 2 else None)
        app.send("orders.lost", {}, key="lost")
        assert app.relay().run(until_idle=True) == COUNT
        assert [(one.key, one.state) for one in block(list_messages(app.store, "default", limit=1))] == [
            ("lost", "parked")
        ]
        found = target.received("shop", COUNT)
        assert sorted(one.key for one in found) == sorted(f"m{n}" for n in range(COUNT))
        assert [one.key for one in found if "ce-subject" in one.headers] == [f"m{n}" for n in range(1, COUNT, 2)]
        assert found[0].headers["ce-type"] == "orders.paid"
        target.make("missing")
        block(resend(app.store, "default", "lost", by="ann"))
        assert app.relay().run(until_idle=True) == 1
        assert [one.key for one in target.received("missing", 1)] == ["lost"]


def test_a_lost_confirmation_is_published_again_with_the_same_key(target: Target, tmp_path: Path) -> None:
    target.make("twice")
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        app.broker("main", target.url, retry=Retry(first=0, most=0), patience=2)
        app.route("orders.*", to="main", place=target.place.format("twice"))
        app.send("orders.paid", {}, key="first")
        assert app.relay().run(until_idle=True) == 1
        app.send("orders.paid", {}, key="a", order="o")
        target.proxy.arm(OneWay("reply", fresh=10))
        relay = app.relay().targets[0]
        relay.run_once()
        assert relay.counts["published"] == 0
        target.proxy.disarm()
        target.proxy.cut()
        for _ in range(20):
            if relay.counts["published"]:
                break
            relay._watch.wait(min(1.0, relay.run_once()))
        relay.close()
        assert relay.counts["published"] == 1
        assert {one.key for one in target.received("twice", 2)} == {"first", "a"}
