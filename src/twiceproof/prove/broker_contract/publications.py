"""Publishing: one outcome per message, order within an order key, and what happens to a key that comes again."""

from __future__ import annotations

from ...brokers.base import Broker, Confirmed, Refused, Unconfirmed
from .case import BrokerCase, keys

__all__ = ["OrderKeys", "Publications", "RepeatedKeys"]


class Publications(BrokerCase):
    def test_a_confirmed_message_is_delivered(self, broker: Broker) -> None:
        self.store(broker, "a")
        assert keys(self.drain(broker)) == ["a"]

    def test_publishing_nothing_has_no_outcomes(self, broker: Broker) -> None:
        assert list(broker.publish([], self.patience)) == []

    def test_a_large_batch_is_confirmed_and_delivered(self, broker: Broker) -> None:
        names = [f"key-{number}" for number in range(600)]
        self.store(broker, *names)
        assert sorted(keys(self.drain(broker))) == sorted(names)

    def test_a_message_that_no_queue_takes_is_refused(self, broker: Broker) -> None:
        (outcome,) = self.publish(broker, self.message("a", place=self.nowhere, topic=self.nowhere))
        assert isinstance(outcome, Refused)
        assert self.nowhere in outcome.why

    def test_each_message_of_a_batch_has_its_own_outcome(self, broker: Broker) -> None:
        lost = self.message("b", place=self.nowhere, topic=self.nowhere)
        outcomes = self.publish(broker, self.message("a"), lost, self.message("c"))
        assert [type(outcome) for outcome in outcomes] == [Confirmed, Refused, Confirmed]
        assert sorted(keys(self.drain(broker))) == ["a", "c"]

    def test_one_key_to_two_places_has_two_outcomes(self, broker: Broker) -> None:
        """One message with two routes: the refusal of one must not be taken for that of the other."""
        lost = self.message("a", place=self.nowhere, topic=self.nowhere)
        assert [type(outcome) for outcome in self.publish(broker, lost, self.message("a"))] == [Refused, Confirmed]
        assert [type(outcome) for outcome in self.publish(broker, self.message("b"), lost)] == [Confirmed, Refused]
        assert sorted(keys(self.drain(broker))) == ["a", "b"]

    def test_a_message_without_a_key_is_refused(self, broker: Broker) -> None:
        outcomes = self.publish(broker, self.message("", b"none"), self.message("a"))
        assert [type(outcome) for outcome in outcomes] == [Refused, Confirmed]
        assert keys(self.drain(broker)) == ["a"]

    def test_a_lost_answer_is_unconfirmed_and_no_refusal(self, broker: Broker) -> None:
        self.store(broker, "before")
        self.patience = 1.0
        self.lose_answers()
        outcomes = self.publish(broker, self.message("a"), self.message("b"))
        assert [type(outcome) for outcome in outcomes] == [Unconfirmed, Unconfirmed]
        self.heal()

    def test_after_a_lost_answer_it_publishes_again(self, broker: Broker) -> None:
        self.store(broker, "before")
        self.lose_answers()
        broker.publish([self.message("a")], 1.0)
        self.heal()
        self.store(broker, "a", "after")
        assert set(keys(self.drain(broker))) == {"before", "a", "after"}


class OrderKeys(BrokerCase):
    def test_messages_of_an_order_key_arrive_in_order(self, broker: Broker) -> None:
        names = [f"{number:02}" for number in range(30)]
        self.store(broker, *names, order="order:1")
        assert keys(self.drain(broker)) == names

    def test_nothing_passes_a_refused_message_of_its_order_key(self, broker: Broker) -> None:
        outcomes = self.publish(
            broker,
            self.message("1", order="a"),
            self.message("2", order="a", place=self.nowhere, topic=self.nowhere),
            self.message("3", order="a"),
            self.message("other", order="b"),
        )
        assert [type(outcome) for outcome in outcomes] == [Confirmed, Refused, Refused, Confirmed]
        assert sorted(keys(self.drain(broker))) == ["1", "other"]

    def test_nothing_passes_an_invalid_message_of_its_order_key(self, broker: Broker) -> None:
        bad = self.message("2", order="a", headers={"note": "two\nlines"})
        outcomes = self.publish(broker, self.message("1", order="a"), bad, self.message("3", order="a"))
        assert [type(outcome) for outcome in outcomes] == [Confirmed, Refused, Refused]
        assert keys(self.drain(broker)) == ["1"]

    def test_a_refused_message_of_an_order_key_keeps_its_place(self, broker: Broker) -> None:
        lost = self.message("2", order="a", place=self.nowhere, topic=self.nowhere)
        self.publish(broker, self.message("1", order="a"), lost, self.message("3", order="a"))
        self.store(broker, "2", "3", order="a")
        assert keys(self.drain(broker)) == ["1", "2", "3"]

    def test_nothing_passes_an_unconfirmed_message_of_its_order_key(self, broker: Broker) -> None:
        """What follows is not handed over; or it is in the same hand-over, which is stored whole and in order."""
        self.store(broker, "before", order="a")
        self.lose_answers()
        first, second = broker.publish([self.message("1", order="a"), self.message("2", order="a")], 1.0)
        self.heal()
        assert isinstance(first, Unconfirmed)
        assert isinstance(second, Refused | Unconfirmed)
        found = keys(self.drain(broker))
        assert "2" not in found or (isinstance(second, Unconfirmed) and found.index("1") < found.index("2"))


class RepeatedKeys(BrokerCase):
    def test_a_repeated_key_is_one_delivery_where_keys_are_kept(self, broker: Broker) -> None:
        self.store(broker, "a")
        (again,) = self.publish(broker, self.message("a"))
        assert isinstance(again, Confirmed)
        assert again.duplicate == (broker.dedupe > 0 and self.tells)
        assert keys(self.drain(broker)) == (["a"] if broker.dedupe > 0 else ["a", "a"])

    def test_two_keys_with_the_same_body_are_two_messages(self, broker: Broker) -> None:
        """Some brokers can tell repetitions by a digest of the body, and drop a second order for the same thing."""
        outcomes = self.publish(broker, self.message("a", b"{}"), self.message("b", b"{}"))
        assert [type(outcome) for outcome in outcomes] == [Confirmed, Confirmed]
        assert sorted(keys(self.drain(broker))) == ["a", "b"]

    def test_a_repeated_key_is_known_to_another_connection(self, broker: Broker) -> None:
        self.store(broker, "a")
        broker.close()
        reopened = self.another()
        self.store(reopened, "a")
        assert len(self.drain(reopened)) == (1 if reopened.dedupe > 0 else 2)

    def test_a_long_key_is_the_same_at_each_attempt(self, broker: Broker) -> None:
        long = "ö" * 400
        self.store(broker, long, "b")
        self.store(broker, long)
        found = [delivery.key for delivery in self.drain(broker) if delivery.key != "b"]
        assert len(set(found)) == 1
        assert len(found) == (1 if broker.dedupe > 0 else 2)
