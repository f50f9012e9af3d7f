"""Receiving: bodies and headers as they were sent, limits, several receivers of one queue; examining and closing."""

from __future__ import annotations

import time

import pytest

from ...brokers.base import Ack, Broker, Confirmed, Refused
from ...errors import BrokerUnavailable
from .case import BrokerCase, bodies, keys

__all__ = ["BrokerLifecycle", "Contents", "Deliveries"]

COUNTS = 10  # tries
LEVELS = {"ok", "warning", "error"}

BODIES = {
    "empty": b"",
    "text": "Grüße, 世界 \U0001f4b6".encode(),
    "every byte": bytes(range(256)),
    "line breaks": b"a\r\n\r\nb\n",
    "the largest": b"\x00\xff" * 500_000,
}
BROKEN_HEADERS = {
    "a line break": {"note": "a\r\nb: c"},
    "a NUL": {"note": "a\0b"},
    "a blank at its end": {"note": "a "},
    "a lone surrogate": {"note": "\ud800"},
    "a name with a colon": {"a:b": "c"},
    "a name with a blank": {"a b": "c"},
    "no name": {"": "c"},
}


class Contents(BrokerCase):
    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
    def test_a_body_arrives_as_it_was_sent(self, broker: Broker, body: bytes) -> None:
        body = body[: self.largest]
        self.publish(broker, self.message("a", body))
        arrived = bodies(self.drain(broker))
        is_same = arrived == [body]  # compared apart: pytest would take minutes to show how a megabyte differs
        assert is_same, f"sent {len(body)} bytes, and got {[len(one) for one in arrived]}"

    def test_headers_arrive_with_names_in_lower_case(self, broker: Broker) -> None:
        sent = {
            "ce-id": "a",
            "Ce-Type": "orders.paid",
            "X-Note": "Grüße, 世界",
            "traceparent": "00-ab-cd-01",
            "empty": "",
        }
        self.store(broker, "a", headers=sent)
        (delivery,) = self.drain(broker)
        wanted = {name.lower(): value for name, value in sent.items()}
        assert {name: delivery.headers.get(name) for name in wanted} == wanted

    def test_the_content_type_arrives(self, broker: Broker) -> None:
        self.store(broker, "a", content_type="application/cloudevents+json; charset=utf-8")
        assert self.drain(broker)[0].content_type == "application/cloudevents+json; charset=utf-8"

    @pytest.mark.parametrize("headers", BROKEN_HEADERS.values(), ids=BROKEN_HEADERS)
    def test_a_header_that_would_be_changed_is_refused(self, broker: Broker, headers: dict[str, str]) -> None:
        outcomes = self.publish(broker, self.message("a", headers=headers), self.message("b", headers={"note": "a b"}))
        assert [type(outcome) for outcome in outcomes] == [Refused, Confirmed]
        assert [outcome.final for outcome in outcomes if isinstance(outcome, Refused)] == [True]
        (delivery,) = self.drain(broker)
        assert (delivery.key, delivery.headers["note"]) == ("b", "a b")

    def test_the_key_arrives_as_it_was_sent(self, broker: Broker) -> None:
        names = ["order:17:paid", "Grüße", "a b", "{x}/*?>", "x" * 255]
        self.store(broker, *names)
        assert sorted(keys(self.drain(broker))) == sorted(names)


class Deliveries(BrokerCase):
    def test_no_more_than_the_limit_is_delivered_at_once(self, broker: Broker) -> None:
        self.store(broker, "a", "b", "c")
        assert 1 <= len(broker.receive(self.source or self.place, 2, self.soon)) <= 2

    def test_an_empty_queue_returns_nothing_after_the_wait(self, broker: Broker) -> None:
        start = self.monotonic()
        assert list(broker.receive(self.source or self.place, 10, 0.2)) == []
        assert 0.15 < self.monotonic() - start < self.soon

    def test_a_queue_that_does_not_exist_is_an_error(self, broker: Broker) -> None:
        with pytest.raises(BrokerUnavailable) as caught:
            broker.receive(self.nowhere, 1, 0.2)
        assert caught.value.missing is True
        assert self.nowhere in str(caught.value)
        self.store(broker, "a")
        assert keys(self.drain(broker)) == ["a"]

    def test_the_first_delivery_counts_as_one(self, broker: Broker) -> None:
        self.store(broker, "a")
        assert self.drain(broker)[0].times in ((1,) if self.counts else (1, None))

    def test_what_one_receiver_holds_another_does_not_get(self, broker: Broker) -> None:
        names = [f"key-{number}" for number in range(6)]
        self.store(broker, *names)
        held = self.take(broker, 6)
        other = self.another()
        assert list(other.receive(self.source or self.place, 10, self.quiet)) == []
        broker.settle([(delivery, Ack()) for delivery in held])
        assert sorted(keys(held)) == names
        assert list(other.receive(self.source or self.place, 10, self.quiet)) == []

    def test_what_one_receiver_acknowledged_another_never_gets(self, broker: Broker) -> None:
        other = self.another()
        self.settle_in_time(broker, {f"key-{number}": Ack() for number in range(6)})
        assert self.nothing_comes(other)


class BrokerLifecycle(BrokerCase):
    def test_what_was_confirmed_is_there_for_the_next_connection(self, broker: Broker) -> None:
        self.store(broker, "a", "b")
        broker.close()
        assert sorted(keys(self.drain(self.another()))) == ["a", "b"]

    def test_closing_twice_is_closing_once(self, broker: Broker) -> None:
        self.store(broker, "a")
        broker.close()
        broker.close()

    def test_a_broker_that_was_never_used_can_be_closed(self, broker: Broker) -> None:
        self.another().close()
        self.store(broker, "a")

    def test_closing_on_a_silent_network_takes_seconds(self, broker: Broker) -> None:
        self.store(broker, "a")
        self.take(broker)
        self.lose_answers()
        start = self.monotonic()
        broker.close()
        assert self.monotonic() - start < 10
        self.heal()
        assert "a" in keys(self.take(self.another()))

    def test_it_counts_what_waits_or_says_that_it_cannot(self, broker: Broker) -> None:
        """`waiting` is for metrics, and may be missing."""
        count = getattr(broker, "waiting", lambda place: None)
        source = self.source or self.place
        if count(source) is None:
            return
        assert count(source) == 0
        self.store(broker, "a", "b", "c")
        for _ in range(COUNTS):  # a server may count a moment later
            if count(source) == 3:
                return
            time.sleep(self.quiet / COUNTS)
        assert count(source) == 3

    def test_what_is_found_has_a_level_and_a_next_move(self, broker: Broker) -> None:
        findings = broker.examine([self.source or self.place])
        assert {finding.level for finding in findings} <= LEVELS
        assert all(finding.subject and finding.text.rstrip().endswith(".") for finding in findings)
        assert not [finding for finding in findings if finding.level == "error"]

    def test_a_missing_place_is_found(self, broker: Broker) -> None:
        errors = [finding for finding in broker.examine([self.nowhere]) if finding.level == "error"]
        assert any(self.nowhere in finding.text for finding in errors)
