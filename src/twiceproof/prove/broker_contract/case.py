"""Hooks and helpers of the broker contract."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ...brokers.base import (
    Ack,
    Broker,
    Confirmed,
    DeliverySettlement,
    OutgoingMessage,
    Publication,
    QueueDelivery,
)

__all__ = ["BrokerCase", "bodies", "keys"]

MANY = 1_000


def keys(deliveries: list[QueueDelivery]) -> list[str]:
    return [delivery.key for delivery in deliveries]


def bodies(deliveries: list[QueueDelivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


class BrokerCase:
    """The hooks that a broker's test class fills in. Pytest makes a new object of it for each test."""

    place = "orders"  # what is published to
    source = ""  # what is received from, if that has another name
    topic = ""  # the routing key, where the broker has one
    nowhere = "nowhere"  # what could be published to, and does not exist
    counts = True  # whether it says how often it has delivered a message
    lease = 0.0  # after how many seconds an unsettled delivery comes again; 0: when its receiver is gone
    patience = 10.0  # seconds for an answer
    soon = 10.0  # seconds within which a delivery comes
    quiet = 0.5  # seconds after which a delivery that has not come does not come any more

    def make_broker(self) -> Broker:
        """A broker whose queue is fresh and empty."""
        raise NotImplementedError("Create an empty queue, and return a broker from make_broker().")

    def open_again(self) -> Broker:
        """Another broker on the queue that `make_broker` created, as another process would open it."""
        raise NotImplementedError("Return another broker on the same queue from open_again().")

    def lose_answers(self) -> None:
        """From now on what is published arrives, and no answer comes back."""
        raise NotImplementedError("Let requests pass and lose the answers in lose_answers().")

    def heal(self) -> None:
        """Answers come again."""
        raise NotImplementedError("End what lose_answers() began in heal().")

    def monotonic(self) -> float:
        """The clock that `wait` and `after` are measured by."""
        return time.monotonic()

    # -- helpers -------------------------------------------------------------------------------

    @pytest.fixture
    def broker(self) -> Iterator[Broker]:
        self.opened: list[Broker] = [self.make_broker()]
        yield self.opened[0]
        self.close_all()

    def close_all(self) -> None:
        for broker in self.opened:
            broker.close()

    def another(self) -> Broker:
        """Another broker, closed when the test ends."""
        self.opened.append(self.open_again())
        return self.opened[-1]

    def message(self, key: str, body: bytes | None = None, **more: Any) -> OutgoingMessage:
        fields: Mapping[str, Any] = {"place": self.place, "topic": self.topic, **more}
        return OutgoingMessage(key=key, body=key.encode() if body is None else body, **fields)

    def publish(self, broker: Broker, *messages: OutgoingMessage) -> list[Publication]:
        outcomes = list(broker.publish(messages, self.patience))
        assert len(outcomes) == len(messages)
        return outcomes

    def store(self, broker: Broker, *keys: str, **more: Any) -> None:
        """Publish, and assert that each was confirmed."""
        outcomes = self.publish(broker, *(self.message(key, **more) for key in keys))
        assert [outcome for outcome in outcomes if not isinstance(outcome, Confirmed)] == []

    def take(self, broker: Broker, count: int = 1) -> list[QueueDelivery]:
        """Receive so many; fail if they do not come soon."""
        found: list[QueueDelivery] = []
        end = self.monotonic() + self.soon
        for _ in range(MANY):  # one that does not wait would be asked for ever, on a clock that only waiting moves
            left = end - self.monotonic()
            if len(found) < count and left > 0:
                found += broker.receive(self.source or self.place, count - len(found), left)
        assert len(found) == count, f"{len(found)} deliveries came within {self.soon:g} seconds, not {count}"
        return found

    def drain(self, broker: Broker) -> list[QueueDelivery]:
        """Receive and acknowledge until nothing comes any more."""
        found: list[QueueDelivery] = []
        for _ in range(MANY):
            batch = broker.receive(self.source or self.place, 100, self.quiet)
            if not batch:
                return found
            found += batch
            broker.settle([(delivery, Ack()) for delivery in batch])
        raise AssertionError(f"The queue does not empty: {keys(found[:10])} …")

    def nothing_comes(self, broker: Broker) -> bool:
        """Nothing comes, not even what the lease of another would have let go by now."""
        return not broker.receive(self.source or self.place, 10, self.quiet + 1.5 * self.lease)

    def settle(self, broker: Broker, delivery: QueueDelivery, word: DeliverySettlement) -> None:
        broker.settle([(delivery, word)])
