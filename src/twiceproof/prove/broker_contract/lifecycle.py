"""Opening, examining and closing."""

from __future__ import annotations

from ...brokers.base import Broker
from .case import BrokerCase, keys

__all__ = ["BrokerLifecycle"]

LEVELS = {"ok", "warning", "error"}


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

    def test_what_is_found_has_a_level_and_a_next_move(self, broker: Broker) -> None:
        findings = broker.examine([self.source or self.place])
        assert {finding.level for finding in findings} <= LEVELS
        assert all(finding.subject and finding.text.rstrip().endswith(".") for finding in findings)
        assert not [finding for finding in findings if finding.level == "error"]

    def test_a_missing_place_is_found(self, broker: Broker) -> None:
        errors = [finding for finding in broker.examine([self.nowhere]) if finding.level == "error"]
        assert any(self.nowhere in finding.text for finding in errors)
