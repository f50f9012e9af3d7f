"""Brokers on a loop of their own: limits, connections that are replaced, and forks."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from twiceproof.brokers.asynchronous import AsyncBroker
from twiceproof.brokers.base import Ack, Confirmed, OutgoingMessage, QueueDelivery, Refused, Unconfirmed
from twiceproof.errors import BrokerUnavailable
from twiceproof.loop_thread import LoopThread


class FakeConnection:
    def __init__(self):
        self.broken = asyncio.get_running_loop().create_future()
        self.closed = False

    async def close(self):
        self.closed = True


class FakeBroker(AsyncBroker):
    """Answers as its test says."""

    most_bytes = 100

    def __init__(self):
        super().__init__("fake")
        self.connections = []
        self.answer = Confirmed()
        self.fails = None
        self.settled = []

    async def _connect(self, *, consuming):
        if self.fails:
            raise self.fails
        self.connections.append(FakeConnection())
        return self.connections[-1]

    def _explain(self, error):
        return f"away: {type(error).__name__}"

    async def _send(self, connection, message):
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer

    async def _take(self, connection, place, limit, wait):
        return [QueueDelivery(place, b"", {}, tag=None)]

    async def _settle_one(self, connection, delivery, word):
        if delivery.place == "bad":
            raise RuntimeError("lost")
        self.settled.append(delivery.place)

    async def _look(self, connection, places):
        return []


@pytest.fixture
def broker():
    broker = FakeBroker()
    yield broker
    broker.close()


MESSAGE = OutgoingMessage("orders", "a", b"")


def test_a_connection_is_kept_while_it_lives(broker):
    for _ in range(3):
        assert broker.publish([MESSAGE], 5.0) == [Confirmed()]
    assert len(broker.connections) == 1


def test_a_connection_that_ended_is_replaced(broker):
    broker.publish([MESSAGE], 5.0)
    loop = broker.connections[0].broken.get_loop()
    loop.call_soon_threadsafe(broker.connections[0].broken.set_result, None)
    broker.publish([MESSAGE], 5.0)
    assert broker.publish([MESSAGE], 5.0) == [Confirmed()]
    assert len(broker.connections) == 2


def test_after_a_doubt_another_connection_is_used(broker):
    broker.answer = None
    assert isinstance(broker.publish([MESSAGE], 0.05)[0], Unconfirmed)
    broker.answer = Confirmed()
    assert broker.publish([MESSAGE], 5.0) == [Confirmed()]
    assert len(broker.connections) == 2


def test_a_broker_that_is_away_refuses_and_raises(broker):
    broker.fails = ConnectionRefusedError()
    assert broker.publish([MESSAGE], 5.0) == [Refused("away: ConnectionRefusedError", away=True)]
    with pytest.raises(BrokerUnavailable, match="away: ConnectionRefusedError"):
        broker.receive("orders", 1, 0.1)
    assert [finding.level for finding in broker.examine()] == ["error"]


def test_publishing_and_receiving_have_connections_of_their_own(broker):
    broker.publish([MESSAGE], 5.0)
    broker.receive("orders", 1, 0.1)
    assert len(broker.connections) == 2


def test_many_threads_open_one_connection(broker):
    start = threading.Barrier(8)

    def publish():
        start.wait(5)
        broker.publish([MESSAGE], 5.0)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(broker.connections) == 1


def test_a_settlement_that_fails_lets_the_others_through(broker):
    broker.receive("orders", 1, 0.1)
    deliveries = [QueueDelivery(place, b"", {}, tag=None) for place in ("a", "bad", "b")]
    broker.settle([(delivery, Ack()) for delivery in deliveries])
    assert sorted(broker.settled) == ["a", "b"]


def test_closing_closes_every_connection_and_it_can_be_used_again(broker):
    broker.publish([MESSAGE], 5.0)
    broker.receive("orders", 1, 0.1)
    broker.close()
    assert [connection.closed for connection in broker.connections] == [True, True]
    assert broker.publish([MESSAGE], 5.0) == [Confirmed()]


def test_work_that_takes_too_long_is_given_up():
    thread = LoopThread("test")
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        thread.run(asyncio.sleep(60), 0.05)
    assert time.monotonic() - start < 5
    thread.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(broker):
    broker.publish([MESSAGE], 5.0)
    child = os.fork()
    if child == 0:
        published = broker.publish([MESSAGE], 5.0) == [Confirmed()]
        os._exit(0 if published and len(broker.connections) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert broker.publish([MESSAGE], 5.0) == [Confirmed()]
    assert len(broker.connections) == 1
