"""What a relay publishes, and what it records about it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.outbox.stand_in import NO_ROUTE, SILENCE, StandInBroker
from twiceproof import App, Misuse, PayloadMismatch, Retry
from twiceproof.brokers.base import Refused
from twiceproof.outbox.message import message_of
from twiceproof.outbox.relay import TargetRelay
from twiceproof.prove.clocks import ManualClock


class Stage:
    """An app in memory, with a broker that does as it is told and a clock that is moved."""

    def __init__(self, **route: Any) -> None:
        self.clock = ManualClock()
        self.app = App("memory://", clock=self.clock)
        self.broker = StandInBroker()
        self.app.broker("main", self.broker, retry=Retry(attempts=3, first=1, most="10m", within="2d"))
        self.app.route("orders.*", to="main", **route)
        self.relay = self.new_relay()

    def new_relay(self, tenants: Any = None) -> TargetRelay:
        target = self.app.routing.targets["main"]
        known = tenants or self.app.tenants.known
        return TargetRelay(self.app.store, target, known, clock=self.clock, roll=lambda: 1.0)

    def send(self, *keys: str, **more: Any) -> None:
        for key in keys:
            self.app.send("orders.paid", {"order": key}, key=key, **more)

    def until_idle(self, relay: TargetRelay | None = None) -> float:
        while (pause := (relay or self.relay).turn()) <= 0:
            pass
        return pause

    def states(self) -> dict[str, str]:
        page = self.app.store.scan("message", limit=10_000).block()
        found = [record for record in page.records if record.state not in ("lane", "held")]
        return {message_of(record).key: record.state for record in found}

    def message(self, key: str) -> Any:
        page = self.app.store.scan("message", limit=10_000).block()
        return next(m for r in page.records if r.state not in ("lane", "held") and (m := message_of(r)).key == key)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.relay.close()
    stage.app.close()


def test_a_message_is_published_once_and_then_sent(stage: Stage) -> None:
    stage.send("a", "b")
    stage.until_idle()
    stage.until_idle()
    assert sorted(stage.broker.keys) == ["a", "b"]
    assert stage.states() == {"a": "sent", "b": "sent"}
    sent = stage.message("a")
    assert (sent.receipt, sent.body) == ("ok", "")
    assert sent.digest
    assert sent.sent_at == pytest.approx(stage.clock.now())


def test_it_carries_cloudevents_headers_and_those_of_the_sender(stage: Stage) -> None:
    stage.send("a", order="order:17", headers={"X-Shop": "berlin"})
    stage.until_idle()
    (message,) = stage.broker.taken
    assert message.headers == {
        "x-shop": "berlin",
        "ce-specversion": "1.0",
        "ce-id": "a",
        "ce-source": "twiceproof/default",
        "ce-type": "orders.paid",
        "ce-subject": "order:17",
        "ce-time": "2023-11-14T22:13:20.000Z",
    }
    assert (message.key, message.order, message.place, message.body) == (
        "a",
        "order:17",
        "orders.paid",
        b'{"order":"a"}',
    )


def test_the_same_key_and_body_is_one_message_and_another_body_a_mismatch(stage: Stage) -> None:
    first = stage.app.send("orders.paid", {"x": 1, "y": 2}, key="k")
    again = stage.app.send("orders.paid", {"y": 2, "x": 1}, key="k")
    assert (first.earlier, again.earlier) == (False, True)
    for other, kind in (({"x": 1}, None), (b"", "text/plain")):
        with pytest.raises(PayloadMismatch, match="another key"):
            stage.app.send("orders.paid", other, key="k", content_type=kind)
    stage.until_idle()
    assert stage.broker.keys == ["k"]


def test_a_refused_message_is_tried_again_later_and_parked_after_its_attempts(stage: Stage) -> None:
    stage.send("a", "b")
    stage.broker.always["a"] = NO_ROUTE
    stage.until_idle()
    assert stage.states() == {"a": "pending", "b": "sent"}
    stage.until_idle()
    assert stage.broker.asked == [["a", "b"]]  # not before its time
    for wait in (1.0, 2.0):
        stage.clock.advance(wait)
        stage.until_idle()
    assert stage.states() == {"a": "parked", "b": "sent"}
    assert (stage.message("a").why, stage.message("a").starts) == ("no such queue", 3)
    stage.clock.advance(1e6)
    stage.until_idle()
    assert len(stage.broker.asked) == 3


def test_a_final_refusal_parks_at_once_and_a_requested_pause_is_kept(stage: Stage) -> None:
    stage.send("a", "b")
    stage.broker.answers = {"a": [Refused("too large", final=True)], "b": [Refused("busy", retry_after=100.0)]}
    stage.until_idle()
    assert stage.states() == {"a": "parked", "b": "pending"}
    stage.clock.advance(99)
    stage.until_idle()
    assert stage.states()["b"] == "pending"
    stage.clock.advance(1)
    stage.until_idle()
    assert stage.states()["b"] == "sent"


def test_without_a_confirmation_it_is_published_again_with_the_same_key(stage: Stage) -> None:
    stage.send("a")
    stage.broker.answers["a"] = [SILENCE]
    stage.until_idle()
    stage.clock.advance(1)
    stage.until_idle()
    assert stage.broker.keys == ["a", "a"]
    assert stage.states() == {"a": "sent"}


def test_each_message_of_a_batch_has_its_own_outcome(stage: Stage) -> None:
    stage.send("a", "b", "c", "d")
    stage.broker.answers = {"a": [NO_ROUTE], "b": [SILENCE], "c": [Refused("no", final=True)]}
    stage.until_idle()
    assert stage.states() == {"a": "pending", "b": "pending", "c": "parked", "d": "sent"}


def test_a_target_that_is_away_is_asked_with_one_message_and_told_of_twice(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.send(*(f"m{n}" for n in range(20)))
    stage.broker.away = True
    with caplog.at_level(logging.INFO, "twiceproof.relay"):
        for _ in range(50):
            stage.clock.advance(stage.relay.turn())
        assert [len(asked) for asked in stage.broker.asked[:3]] == [20, 1, 1]
        assert max(len(asked) for asked in stage.broker.asked[1:]) == 1
        assert stage.message("m0").starts == 0  # no attempt of the message's own
        stage.broker.away = False
        for _ in range(5):
            stage.clock.advance(40)
            stage.until_idle()
    assert caplog.records[0].getMessage().startswith("the target main cannot be reached")
    assert "is back" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2
    assert sorted(stage.broker.keys) == sorted(f"m{n}" for n in range(20))


def test_a_relay_that_was_stopped_past_its_lease_marks_nothing(stage: Stage) -> None:
    stage.send("a")
    other = stage.new_relay()

    def meanwhile() -> None:
        stage.broker.after = lambda: None
        stage.clock.advance(60)
        stage.until_idle(other)
        stage.app.store.scan("message").block()

    stage.broker.after = meanwhile
    stage.until_idle()
    assert stage.broker.keys == ["a", "a"]
    assert stage.relay.counts["not marked"] == 1
    assert stage.states() == {"a": "sent"}
    other.close()


def test_a_busy_tenant_does_not_hold_up_another(stage: Stage) -> None:
    for n in range(1_200):
        stage.app.of("noisy").send("orders.paid", {}, key=f"n{n}")
    relay = stage.relay
    relay.turn()
    stage.app.of("quiet").send("orders.paid", {}, key="q")
    relay.turn()
    assert "q" in stage.broker.asked[1]
    assert len(stage.broker.asked[0]) == len(stage.broker.asked[1]) == 500


def test_a_delayed_message_waits(stage: Stage) -> None:
    stage.send("a", delay="5m")
    stage.until_idle()
    assert stage.broker.keys == []
    stage.clock.advance(300)
    stage.until_idle()
    assert stage.broker.keys == ["a"]


def test_sent_messages_are_swept_after_their_time_and_parked_ones_are_not(stage: Stage) -> None:
    from twiceproof.claims.retention import sweep
    from twiceproof.operations import block

    stage.send("a", "b")
    stage.broker.always["b"] = Refused("no", final=True)
    stage.until_idle()
    stage.clock.advance(7 * 86_400 - 1)
    block(sweep(stage.app.store))
    assert stage.states() == {"a": "sent", "b": "parked"}
    stage.clock.advance(2)
    block(sweep(stage.app.store))
    assert stage.states() == {"b": "parked"}


class TestReview:
    """Routes with on_unknown="review": published once, unless a person says otherwise."""

    @pytest.fixture
    def stage(self) -> Iterator[Stage]:
        stage = Stage(on_unknown="review")
        yield stage
        stage.app.close()

    @pytest.mark.parametrize("order", [None, "o"])
    def test_without_an_answer_it_is_parked(self, stage: Stage, order: str | None) -> None:
        stage.send("a", order=order)
        stage.broker.answers["a"] = [SILENCE]
        stage.until_idle()
        stage.clock.advance(1e6)
        stage.until_idle()
        assert stage.broker.keys == ["a"]
        assert stage.states() == {"a": "parked"}

    @pytest.mark.parametrize("order", [None, "o"])
    def test_a_relay_that_dies_after_publishing_leaves_it_to_a_person(self, stage: Stage, order: str | None) -> None:
        stage.send("a", order=order)

        def die() -> None:
            raise SystemExit

        stage.broker.after = die
        with pytest.raises(SystemExit):
            stage.relay.turn()
        stage.broker.after = lambda: None
        stage.clock.advance(60)
        other = stage.new_relay()
        stage.until_idle(other)
        assert stage.broker.keys == ["a"]
        assert stage.states() == {"a": "parked"}

    @pytest.mark.parametrize("order", [None, "o"])
    def test_what_was_not_handed_over_is_not_taken_for_published(self, stage: Stage, order: str | None) -> None:
        stage.send("a", "b", order=order)
        stage.broker.away = True
        stage.relay.turn()
        assert set(stage.states().values()) == {"pending"}
        stage.broker.away = False
        for _ in range(3):
            stage.clock.advance(60)
            stage.until_idle()
        assert stage.states() == {"a": "sent", "b": "sent"}
        assert stage.broker.keys == ["a", "b"]

    def test_behind_one_without_an_answer_nothing_of_its_order_key_is_published(self, stage: Stage) -> None:
        stage.send("a", "b", order="o")
        stage.broker.answers["a"] = [SILENCE]
        stage.until_idle()
        stage.clock.advance(60)
        stage.until_idle()
        assert stage.broker.keys == ["a"]
        assert stage.states() == {"a": "parked", "b": "pending"}

    def test_behind_one_of_a_relay_that_died_nothing_is_published(self, stage: Stage) -> None:
        stage.send("a", order="o")

        def die() -> None:
            raise SystemExit

        stage.broker.after = die
        with pytest.raises(SystemExit):
            stage.relay.turn()
        stage.broker.after = lambda: None
        stage.send("b", order="o")
        stage.clock.advance(60)
        other = stage.new_relay()
        stage.until_idle(other)
        assert stage.broker.keys == ["a"]
        assert stage.states() == {"a": "parked", "b": "pending"}

    def test_a_refusal_is_an_answer(self, stage: Stage) -> None:
        stage.send("a")
        stage.broker.answers["a"] = [NO_ROUTE]
        stage.until_idle()
        stage.clock.advance(1)
        stage.until_idle()
        assert stage.states() == {"a": "sent"}


def test_what_could_not_be_published_is_refused_when_it_is_sent(stage: Stage) -> None:
    send = stage.app.send
    with pytest.raises(Misuse, match="No route takes"):
        send("invoices.paid", {}, key="a")
    with pytest.raises(Misuse, match="no JSON form"):
        send("orders.paid", object(), key="a")
    with pytest.raises(Misuse, match=r"262,144"):
        send("orders.paid", "x" * 262_143, key="a")
    with pytest.raises(Misuse, match="needs a content type"):
        send("orders.paid", b"x", key="a")
    with pytest.raises(Misuse, match="needs a key"):
        send("orders.paid", {})
    with pytest.raises(Misuse, match="cannot be delayed"):
        send("orders.paid", {}, key="a", order="o", delay=1)
    with pytest.raises(Misuse, match="not ce-"):
        send("orders.paid", {}, key="a", headers={"ce-id": "x"})
    assert stage.states() == {}
    send("orders.paid", "x" * 262_142, key="a")
    send("orders.paid", b"\0\xff", key="b", content_type="application/octet-stream")
    stage.until_idle()
    assert stage.broker.taken[1].body == b"\0\xff"


def test_two_routes_are_two_messages_with_one_key_and_never_to_one_target(stage: Stage) -> None:
    second = StandInBroker()
    stage.app.broker("second", second)
    stage.app.route("orders.paid", to="second", place="ledger")
    sent = stage.app.send("orders.paid", {}, key="a")
    assert sent.targets == ("main", "second")
    stage.app.relay().run(until_idle=True)
    assert (stage.broker.keys, second.keys) == (["a"], ["a"])
    assert second.taken[0].place == "ledger"
    stage.app.route("*", to="second")
    with pytest.raises(Misuse, match="Two routes"):
        stage.app.send("orders.paid", {}, key="b")
