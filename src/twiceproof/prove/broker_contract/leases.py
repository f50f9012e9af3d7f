"""Brokers that deliver again after a time, while the first receiver is still connected."""

from __future__ import annotations

from ...brokers.base import Ack, Broker, Extend, Reject, Requeue
from .case import BrokerCase, keys

__all__ = ["Leased"]


class Leased(BrokerCase):
    lease = 1.0

    def test_what_is_not_settled_comes_again_when_its_time_is_over(self, broker: Broker) -> None:
        self.store(broker, "a")
        start = self.monotonic()
        self.take(broker)
        (again,) = self.take(self.another())
        assert self.monotonic() - start >= 0.9 * self.lease
        assert (again.key, again.times) == ("a", 2)

    def test_a_delivery_says_until_when_it_is_held(self, broker: Broker) -> None:
        self.store(broker, "a")
        start = self.monotonic()
        (delivery,) = self.take(broker)
        assert delivery.until is not None
        assert start < delivery.until <= self.monotonic() + self.lease

    def test_a_late_settlement_does_not_settle_the_next_delivery(self, broker: Broker) -> None:
        self.store(broker, "a")
        (old,) = self.take(broker)
        other = self.another()
        (new,) = self.take(other)
        for word in (Ack(), Reject(), Requeue(60.0), Extend(60.0)):
            self.settle(broker, old, word)
        assert new.key == "a"
        assert keys(self.take(self.another())) == ["a"]

    def test_what_is_extended_is_held_for_longer(self, broker: Broker) -> None:
        self.store(broker, "a")
        (delivery,) = self.take(broker)
        self.settle(broker, delivery, Extend(4 * self.lease))
        other = self.another()
        assert list(other.receive(self.source or self.place, 1, 2 * self.lease)) == []
        self.settle(broker, delivery, Ack())
        assert self.nothing_comes(other)

    def test_what_was_extended_comes_again_in_the_end(self, broker: Broker) -> None:
        self.store(broker, "a")
        (delivery,) = self.take(broker)
        start = self.monotonic()
        self.settle(broker, delivery, Extend(1.5 * self.lease))
        assert keys(self.take(self.another())) == ["a"]
        assert self.monotonic() - start >= 1.4 * self.lease
