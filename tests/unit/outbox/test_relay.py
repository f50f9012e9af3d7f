"""What a relay publishes, and what it records about it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from tests.unit.outbox.stand_in import NO_ROUTE, SILENCE, StandInBroker
from twiceproof import App, Misuse, PayloadMismatch, Retry, env, webhook
from twiceproof.brokers.base import Publication, Refused
from twiceproof.claims.claim import body_of
from twiceproof.outbox import relay as relay_module
from twiceproof.outbox.message import message_of, queue_of_target
from twiceproof.outbox.relay import TargetRelay
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import Replace


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
        while (pause := (relay or self.relay).run_once()) <= 0:
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
            stage.clock.advance(stage.relay.run_once())
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


def test_after_a_short_outage_messages_are_published_within_seconds(stage: Stage) -> None:
    stage.send("a", "b")
    stage.send("c", order="o")
    stage.broker.away = True
    stage.until_idle()
    stage.broker.away = False
    began = stage.clock.monotonic()
    pause = stage.relay.run_once()
    while len(stage.broker.taken) < 3:
        stage.clock.advance(max(0.01, pause))
        pause = stage.relay.run_once()
    assert stage.clock.monotonic() - began < 5  # and not when their hand-out expires, after 30
    assert stage.message("a").starts == 0
    assert stage.relay.counts["not marked"] == 0


def test_each_reason_for_refusals_is_logged_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.send(*(f"m{n}" for n in range(20)))
    stage.broker.always = {f"m{n}": NO_ROUTE if n % 2 else SILENCE for n in range(20)}
    for _ in range(2):
        stage.until_idle()
        stage.clock.advance(1)
    lines = sorted(record.getMessage() for record in caplog.records)
    assert lines == [
        "could not publish m0 to main, will try again: no answer",
        "could not publish m1 to main, will try again: no such queue",
    ]


def test_a_broker_that_is_declared_wrongly_is_said_in_its_own_words(caplog: pytest.LogCaptureFixture) -> None:
    with App("memory://") as app:
        app.broker("main", "amq://host")
        app.route("orders.*", to="main")
        app.send("orders.paid", {}, key="a")
        app.relay().run(until_idle=True)
        assert [record.state for record in app.store.scan("message").block().records] == ["pending"]
    assert "cannot be reached, will try again: 'amq' is not a broker" in caplog.records[0].getMessage()


@pytest.mark.parametrize("order", [None, "customer:1"])
def test_a_body_that_cannot_be_read_holds_up_no_other_message(
    stage: Stage, order: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a repair of the database by hand. A text that was not base64 stopped all of its target."""
    for key in ("spoilt", "whole"):
        stage.app.send(
            "orders.paid", key.encode(), key=key, content_type="text/plain", order=order and f"{order}:{key}"
        )
    found = stage.app.store.scan("message", limit=10).block().records
    record = next(one for one in found if one.state == "pending" and message_of(one).key == "spoilt")
    body = body_of(structs.replace(message_of(record), body="%"))
    stage.app.store.write(
        Replace(
            record.at, body, record.state, version=record.version, queue=record.queue, due_in=None if order else 0.0
        )
    ).block()
    stage.until_idle()
    assert stage.states() == {"spoilt": "pending", "whole": "sent"}
    assert "The body of 'spoilt' cannot be read" in caplog.text


def test_an_answer_that_is_none_says_nothing(stage: Stage) -> None:
    """Of a broker that its user has written."""
    stage.send("a")
    stage.broker.answers["a"] = [cast(Publication, None)]
    stage.until_idle()
    assert (stage.states(), stage.message("a").why) == (
        {"a": "pending"},
        "the target did not answer about every message",
    )


def test_a_fault_that_nobody_expected_does_not_end_the_relay(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "FAULT_PAUSE", 0.01)
    faults = [RuntimeError("no tenants"), RuntimeError("no tenants")]
    sent = threading.Event()
    stage.broker.after = sent.set

    def tenants() -> list[str]:
        if faults:
            raise faults.pop()
        return ["default"]

    stage.send("a")
    relay = stage.new_relay(tenants)
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    assert sent.wait(30)
    relay.drain()
    thread.join(30)
    assert stage.states() == {"a": "sent"}


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


def test_it_knows_when_what_a_killed_relay_was_handed_is_due(stage: Stage) -> None:
    stage.send("a")
    stage.app.store.due("message", queues=[queue_of_target("default", "main")], limit=1, hide=30.0).block()
    assert stage.until_idle() > 0
    assert stage.broker.keys == []
    assert stage.relay.next_in == pytest.approx(30.0, abs=1.0)
    stage.clock.advance(31)
    stage.until_idle()
    stage.relay.run_once()
    assert (stage.broker.keys, stage.relay.next_in) == (["a"], None)


def test_a_busy_tenant_does_not_hold_up_another(stage: Stage) -> None:
    for n in range(1_200):
        stage.app.of("noisy").send("orders.paid", {}, key=f"n{n}")
    relay = stage.relay
    relay.run_once()
    stage.app.of("quiet").send("orders.paid", {}, key="q")
    relay.run_once()
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
            stage.relay.run_once()
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
        stage.relay.run_once()
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
            stage.relay.run_once()
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


def test_two_webhooks_that_differ_never_share_a_target(stage: Stage) -> None:
    first = webhook("https://one.example.com/hook", env("FIRST"), name="partner")
    stage.app.route("bills.*", to=first)
    stage.app.route("returns.*", to=first)
    for other in ("partner", "main"):
        with pytest.raises(Misuse, match="differs from this webhook"):
            stage.app.route("mails.*", to=webhook("https://two.example.com/hook", env("SECOND"), name=other))


def test_what_was_handed_out_late_is_left_to_the_next_round(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.send("a")
    store = stage.app.store
    due = store.due

    def slowly(*args: Any, **options: Any) -> Any:
        answer = due(*args, **options).block()
        stage.clock.advance(25)
        return SimpleNamespace(block=lambda: answer)

    monkeypatch.setattr(store, "due", slowly)
    stage.relay.run_once()
    assert stage.broker.asked == []  # another relay may have it before this one had published it
    monkeypatch.undo()
    stage.clock.advance(30)
    stage.until_idle()
    assert stage.broker.keys == ["a"]


# -- the store's clock ---------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"order": "account:1"}], ids=["alone", "in a lane"])
@pytest.mark.parametrize("goes_on", [True, False], ids=["a relay that goes on", "a relay that begins"])
def test_what_was_sent_while_the_stores_clock_was_ahead_does_not_wait(
    stage: Stage, more: dict[str, Any], goes_on: bool
) -> None:
    standing = stage.app.relay().targets[0]
    standing.run_once()
    stage.clock.set_wall(3_600)
    stage.send("a", **more)
    if goes_on:
        stage.broker.answers["a"] = [SILENCE]
        standing.run_once()
    else:
        stage.app.relay().targets[0]._hand_out(1)  # a relay that dies with it
    stage.clock.set_wall(-3_600)
    relay = standing if goes_on else stage.app.relay().targets[0]
    relay.run_once()
    stage.clock.advance(120)  # after its retry, or the dead relay's lease
    stage.until_idle(relay)
    assert stage.states() == {"a": "sent"}


def test_a_message_for_a_lane_from_the_future_does_not_keep_it_there(stage: Stage) -> None:
    stage.clock.set_wall(3_600)
    stage.send("a", order="account:1")
    stage.clock.set_wall(-3_600)
    stage.send("b", order="account:1")
    stage.until_idle()
    assert stage.states() == {"a": "sent", "b": "sent"}
