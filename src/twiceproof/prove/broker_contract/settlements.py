"""Settling: each delivery by itself, once and for all, and without harm if that happens twice or late; leases."""

from __future__ import annotations

from ...brokers.base import Ack, Broker, DeliverySettlement, Extend, QueueDelivery, Reject, Requeue
from .case import BrokerCase, keys

__all__ = ["Leased", "SettledInOrder", "SettledOneByOne", "Settlements"]

DELAY = 1.0
LONG_DELAY = 30.0
SPANS = 5  # to be tried, each twice as long as the one before


class Settlements(BrokerCase):
    def test_what_is_acknowledged_never_comes_again(self, broker: Broker) -> None:
        self.settle_in_time(broker, {"a": Ack()})
        assert self.nothing_comes(broker)
        broker.close()
        assert self.nothing_comes(self.another())

    def test_what_is_requeued_comes_again_and_counts(self, broker: Broker) -> None:
        self.store(broker, "a")
        self.settle(broker, self.take(broker)[0], Requeue())
        (again,) = self.take(broker)
        assert again.key == "a"
        assert again.times in ((2,) if self.counts else (2, None))

    def test_what_is_requeued_for_later_comes_no_earlier(self, broker: Broker) -> None:
        self.store(broker, "a")
        (delivery,) = self.take(broker)
        start = self.monotonic()
        self.settle(broker, delivery, Requeue(DELAY))
        (again,) = self.take(broker)
        assert self.monotonic() - start >= DELAY - 0.01
        assert again.key == "a"
        assert again.times in ((2,) if self.counts else (2, None))

    def test_what_waits_for_its_time_lets_others_pass(self, broker: Broker) -> None:
        self.store(broker, "a")
        self.settle(broker, self.take(broker)[0], Requeue(LONG_DELAY))
        self.store(broker, "b")
        assert keys(self.take(broker)) == ["b"]

    def test_what_waits_for_its_time_is_settled_already(self, broker: Broker) -> None:
        self.store(broker, "a")
        (delivery,) = self.take(broker)
        for word in (Requeue(DELAY), Ack(), Reject()):
            self.settle(broker, delivery, word)
        assert keys(self.take(broker)) == ["a"]

    def test_what_is_rejected_comes_no_more(self, broker: Broker) -> None:
        self.settle_in_time(broker, {"a": Reject("not ours"), "b": Ack()})
        assert self.nothing_comes(broker)
        broker.close()
        assert self.nothing_comes(self.another())

    def test_settling_twice_harms_nothing(self, broker: Broker) -> None:
        self.store(broker, "a", "b")
        first, second = self.take(broker, 2)
        for word in (Ack(), Ack(), Requeue(), Reject(), Extend(1.0)):
            self.settle(broker, first, word)
        assert self.held_alone(broker, second)
        self.settle(broker, second, Requeue())
        self.settle(broker, second, Ack())  # its time is over: it was given back
        assert keys(self.take(broker)) == [second.key]

    def held_alone(self, broker: Broker, delivery: QueueDelivery) -> bool:
        """Assert that the connection still works, and that late settlements had no effect."""
        self.settle(broker, delivery, Extend(10.0))
        return not broker.receive(self.source or self.place, 10, self.quiet)

    def test_what_was_not_settled_comes_again_after_a_close(self, broker: Broker) -> None:
        self.store(broker, "a", "b")
        self.settle(broker, self.take(broker, 2)[0], Extend(0.5))
        broker.close()
        again = self.take(self.another(), 2)
        assert sorted(keys(again)) == ["a", "b"]

    def test_what_waited_for_its_time_comes_again_after_a_close(self, broker: Broker) -> None:
        self.store(broker, "a")
        self.settle(broker, self.take(broker)[0], Requeue(DELAY))
        broker.close()
        assert keys(self.take(self.another())) == ["a"]

    def test_a_settlement_after_the_close_does_nothing(self, broker: Broker) -> None:
        self.store(broker, "a")
        (old,) = self.take(broker)
        broker.close()
        other = self.another()
        (new,) = self.take(other)
        for word in (Ack(), Reject(), Requeue(), Extend(60.0)):
            self.settle(broker, old, word)
        assert new.key == old.key == "a"
        other.close()
        assert keys(self.drain(self.another())) == ["a"]


class SettledOneByOne(BrokerCase):
    """A broker that keeps each settlement by itself."""

    def test_an_acknowledgement_settles_no_other_delivery(self, broker: Broker) -> None:
        names = ["1", "2", "3", "4"]
        self.store(broker, *names)
        third = next(delivery for delivery in self.take(broker, 4) if delivery.key == "3")
        self.settle(broker, third, Ack())
        broker.close()
        assert sorted(keys(self.drain(self.another()))) == ["1", "2", "4"]

    def test_each_delivery_is_settled_by_its_own_word(self, broker: Broker) -> None:
        self.store(broker, "ack", "requeue", "reject", "extend")
        words: dict[str, DeliverySettlement] = {
            "ack": Ack(),
            "requeue": Requeue(),
            "reject": Reject(),
            "extend": Extend(5.0),
        }
        broker.settle([(delivery, words[delivery.key]) for delivery in self.take(broker, 4)])
        assert keys(self.take(broker)) == ["requeue"]
        broker.close()
        assert set(keys(self.drain(self.another()))) == {"requeue", "extend"}


class SettledInOrder(BrokerCase):
    """A broker that keeps one number: everything before it is settled. A message settled after an open one is
    remembered by the receiver; after a restart it may come again. No other message may, and none is lost.
    """

    def test_an_acknowledgement_behind_open_deliveries_settles_none_of_them(self, broker: Broker) -> None:
        third = self.take_lane(broker)[2]
        self.settle(broker, third, Ack())
        assert list(broker.receive(self.source or self.place, 10, self.quiet)) == []
        broker.close()
        assert keys(self.drain(self.another())) in (["1", "2", "4"], ["1", "2", "3", "4"])

    def test_what_is_settled_in_order_never_comes_again(self, broker: Broker) -> None:
        first, second, *_ = self.take_lane(broker)
        broker.settle([(first, Ack()), (second, Reject())])
        broker.close()
        assert keys(self.drain(self.another())) == ["3", "4"]

    def test_what_was_settled_early_is_kept_once_those_before_it_are(self, broker: Broker) -> None:
        first, second, third, _ = self.take_lane(broker)
        for delivery in (third, second, first):
            self.settle(broker, delivery, Ack())
        broker.close()
        assert keys(self.drain(self.another())) == ["4"]

    def test_each_delivery_has_the_effect_of_its_own_word(self, broker: Broker) -> None:
        words = (Requeue(), Ack(), Reject(), Extend(5.0))
        broker.settle(list(zip(self.take_lane(broker), words, strict=True)))
        (again,) = self.take(broker)
        assert again.key == "1"
        assert list(broker.receive(self.source or self.place, 10, self.quiet)) == []  # neither "2" nor "3"
        self.settle(broker, again, Ack())
        broker.close()
        assert keys(self.drain(self.another())) == ["4"]

    def take_lane(self, broker: Broker) -> list[QueueDelivery]:
        """Four deliveries, in the order in which the broker numbers them."""
        self.store(broker, "1", "2", "3", "4", order="a")
        return self.take(broker, 4)


class Leased(BrokerCase):
    """A broker that delivers again after a time, while the first receiver is still connected."""

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
        """On a slow machine the time may be over before the last settlement: then twice the time is tried."""
        other = self.another()
        for span in [4 * self.lease * 2**n for n in range(SPANS)]:
            self.store(broker, f"for {span:g}")
            (delivery,) = self.take(broker)
            start = self.monotonic()
            self.settle(broker, delivery, Extend(span))
            in_time = self.is_held(delivery)
            found = list(other.receive(self.source or self.place, 1, 2 * self.lease))
            self.settle(broker, delivery, Ack())
            left = start + span - self.monotonic()
            if in_time and left > 0:
                break
            self.drain(other, self.past_lease)
        assert in_time and left > 0, f"{span:g} seconds were over before a receive and two settlements were done"
        assert found == []
        assert list(other.receive(self.source or self.place, 10, left + self.past_lease)) == []

    def test_what_was_extended_comes_again_in_the_end(self, broker: Broker) -> None:
        self.store(broker, "a")
        (delivery,) = self.take(broker)
        start = self.monotonic()
        self.settle(broker, delivery, Extend(1.5 * self.lease))
        assert keys(self.take(self.another())) == ["a"]
        assert self.monotonic() - start >= 1.4 * self.lease
