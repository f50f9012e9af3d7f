"""Hooks and helpers of the broker contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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

__all__ = ["HOLDING", "BrokerCase", "bodies", "keys"]

MANY = 1_000
TRIES = 10  # of what has to be done before a lease is over
LASTING = 60.0  # seconds of a lease that does not end during a test
HOLDING = {  # tests that must not last until the end of a lease
    "test_what_one_receiver_holds_another_does_not_get",
    "test_what_is_requeued_for_later_comes_no_earlier",
    "test_settling_twice_harms_nothing",
    "test_an_acknowledgement_settles_no_other_delivery",
    "test_each_delivery_is_settled_by_its_own_word",
}


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
    tells = True  # whether it says that it had a key already, where it keeps keys
    largest = 1_000_000  # bytes of a body that it takes
    # After how many seconds an unsettled delivery comes again; 0: when its receiver is gone. Make the queue with it: in
    # the tests of `HOLDING` it is longer, so that a slow machine does not let go of what it holds.
    lease = 0.0
    patience = 10.0  # seconds for an answer
    soon = 10.0  # seconds within which a delivery comes
    quiet = 0.5  # seconds to wait before concluding that no delivery comes

    def setup_method(self, method: Callable[..., object]) -> None:
        """Pytest calls it before the fixtures."""
        if self.lease and method.__name__ in HOLDING:
            self.lease = LASTING

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

    def drain(self, broker: Broker, quiet: float | None = None) -> list[QueueDelivery]:
        """Receive and acknowledge until nothing comes any more."""
        found: list[QueueDelivery] = []
        for _ in range(MANY):
            batch = broker.receive(self.source or self.place, 100, self.quiet if quiet is None else quiet)
            if not batch:
                return found
            found += batch
            broker.settle([(delivery, Ack()) for delivery in batch])
        raise AssertionError(f"The queue does not empty: {keys(found[:10])} …")

    def nothing_comes(self, broker: Broker) -> bool:
        """Assert that nothing comes, even after the leases of other receivers."""
        return not broker.receive(self.source or self.place, 10, self.past_lease)

    @property
    def past_lease(self) -> float:
        return self.quiet + 1.5 * self.lease

    def settle_in_time(self, broker: Broker, words: Mapping[str, DeliverySettlement]) -> None:
        """Store a message for each of these keys, take them, and settle each in the given way.

        If the lease is over before that is done, on a slow machine, it is repeated.
        """
        for nth in range(TRIES):
            said = {f"{key} {nth}": word for key, word in words.items()}  # of a key sent before, there may be no second
            self.store(broker, *said)
            taken = self.take(broker, len(said))
            assert sorted(keys(taken)) == sorted(said)
            broker.settle([(delivery, said[delivery.key]) for delivery in taken])
            if all(self.is_held(delivery) for delivery in taken):
                return
            self.drain(broker, self.past_lease)
        raise AssertionError(f"{self.lease:g} seconds were over before a delivery was settled, {TRIES} times")

    def is_held(self, delivery: QueueDelivery) -> bool:
        """Whether the time that it was delivered for is not over yet."""
        return delivery.until is None or self.monotonic() < delivery.until

    def settle(self, broker: Broker, delivery: QueueDelivery, word: DeliverySettlement) -> None:
        broker.settle([(delivery, word)])
