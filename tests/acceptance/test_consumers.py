"""Consumers of real brokers, killed while they read: every message becomes one run, and none is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from twiceproof import App
from twiceproof.brokers.base import Broker, Confirmed, OutgoingMessage
from twiceproof.brokers.open import open_broker
from twiceproof.claims.claim import claim_of
from twiceproof.inbound.dead_letters import letters
from twiceproof.inbound.queues.reader import OpenedBroker, QueueReader
from twiceproof.operations import block
from twiceproof.stores.base import scan_all

SHOP = """
import os
from twiceproof import App, env
app = App(os.environ["LEDGER"])
app.broker("main", env("BROKER"))

@app.flow(key="order:{order[id]}")
def sync(order):
    return order["id"]

app.consume("main/" + os.environ["PLACE"], start=sync, prefetch=20)
"""
MESSAGES, KILLS = 300, 8
POISON = b"{"

numbers = itertools.count()


async def make_rabbit_queue(url: str, queue: str) -> None:
    import aio_pika

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "quorum"})


async def make_nats_consumer(url: str, stream: str) -> None:
    import nats
    from nats.js.api import ConsumerConfig, StreamConfig

    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(StreamConfig(stream, subjects=[f"{stream}.*"], max_age=86_400))
    await jetstream.add_consumer(stream, ConsumerConfig("work", durable_name="work", ack_wait=2))
    await client.close()


class Queue:
    """One queue of a real broker, and an app in a directory of its own that consumes it."""

    def __init__(self, url: str, to: str, place: str, directory: Path) -> None:
        self.url, self.to, self.place = url, to, place
        self.ledger = f"sqlite:///{directory / 'shop.db'}"
        self.directory = directory
        (directory / "shop.py").write_text(SHOP)
        self.broker: Broker = open_broker(url)

    def publish(self, bodies: list[bytes]) -> None:
        """Under other keys each time: a sender that publishes again after a lost answer."""
        sent = [OutgoingMessage(self.to, f"m{next(numbers)}", body) for body in bodies]
        assert all(isinstance(outcome, Confirmed) for outcome in self.broker.publish(sent, 30.0))

    def consume(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"LEDGER": self.ledger, "BROKER": self.url, "PLACE": self.place}
        command = [sys.executable, "-m", "twiceproof", "consume", "shop:app"]
        return subprocess.Popen(command, cwd=self.directory, env=environment, stderr=subprocess.DEVNULL)

    def keys(self) -> list[str]:
        with App(self.ledger) as app:
            return [claim_of(record).key for record in block(scan_all(app.store, "run"))]

    def drain(self) -> QueueReader:
        with App(self.ledger) as app:
            flow = app.flow(key="order:{order[id]}", name="sync")(_sync)
            app.consume(f"main/{self.place}", start=flow)
            reader = QueueReader(app.runtime, app.consumers[f"main/{self.place}"], self._opened)
            empty = 0
            while empty < 4:  # seconds: a lease of a killed consumer is over by then
                empty = 0 if reader.round(1.0) or reader._held else empty + 1
            reader.stop()
            reader.run()
            self.letters = block(letters(app.store, "default"))
        return reader

    def _opened(self) -> OpenedBroker:
        return OpenedBroker(open_broker(self.url))


def _sync(order: dict[str, Any]) -> None: ...


@pytest.fixture(params=["rabbitmq", "nats"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    name = f"orders-{next(numbers)}-{os.getpid()}"
    if request.param == "rabbitmq":
        url = request.getfixturevalue("rabbit_server").url
        asyncio.run(make_rabbit_queue(url, name))
        made = Queue(url, f"/queues/{name}", name, tmp_path)
    else:
        url = request.getfixturevalue("nats_server").url
        asyncio.run(make_nats_consumer(url, name))
        made = Queue(url, f"{name}.paid", f"{name}/work", tmp_path)
    yield made
    made.broker.close()


@pytest.mark.slow
@pytest.mark.server
def test_killed_consumers_lose_nothing_and_repeat_nothing(queue: Queue) -> None:
    bodies = [msgspec.json.encode({"id": number}) for number in range(MESSAGES)] * 2
    random.Random(7).shuffle(bodies)
    queue.publish([*bodies, POISON])
    for _ in range(KILLS):
        killed_while_it_reads(queue)
    reader = queue.drain()
    assert sorted(queue.keys()) == sorted(f"order:{number}" for number in range(MESSAGES))
    assert reader.outcomes.keys() <= {"new", "duplicate", "poison"}
    assert [letter.size for letter in queue.letters] == [len(POISON)]


def killed_while_it_reads(queue: Queue) -> None:
    """Killed as soon as it has claimed something that was not claimed before, or has nothing to claim."""
    before, child = len(queue.keys()), queue.consume()
    try:
        until = time.monotonic() + 20
        while len(queue.keys()) in (before,) and before < MESSAGES and time.monotonic() < until:
            assert child.poll() is None
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


@pytest.mark.slow
@pytest.mark.server
def test_a_consumer_that_is_told_to_end_settles_what_it_has(queue: Queue) -> None:
    queue.publish([msgspec.json.encode({"id": number}) for number in range(50)])
    child = queue.consume()
    while len(queue.keys()) < 50:
        assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 0
    assert queue.drain().outcomes == {}
