"""Lists of messages, and a person's word about those that wait for review."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.outbox.stand_in import NO_ROUTE, SILENCE
from tests.unit.outbox.test_relay import Stage
from twiceproof import Misuse, Retry
from twiceproof.brokers.base import Refused
from twiceproof.operations import block
from twiceproof.outbox.outcomes import decide
from twiceproof.outbox.queries import count_messages, drop, list_messages, resend, show_message

NO = Refused("no such queue", final=True)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.send("a", "b")
    stage.send("1", "2", order="o")
    stage.broker.always |= {"a": NO, "1": NO}
    stage.until_idle()
    yield stage
    stage.relay.close()
    stage.app.close()


def listed(stage: Stage, **which: Any) -> list[tuple[str, str]]:
    return [(one.key, one.state) for one in block(list_messages(stage.app.store, "default", **which))]


def test_what_needs_attention_comes_first(stage: Stage) -> None:
    assert sorted(listed(stage)[:2]) == [("1", "parked"), ("a", "parked")]
    assert listed(stage)[2:] == [("2", "pending"), ("b", "sent")]
    assert listed(stage, states=("sent",), topic="orders.paid", target="main") == [("b", "sent")]
    assert listed(stage, topic="other") == listed(stage, target="other") == []
    with pytest.raises(Misuse, match="no state"):
        listed(stage, states=("lane",))


def test_counts_say_how_many_wait_and_for_how_long(stage: Stage) -> None:
    stage.clock.advance(90)
    counts = block(count_messages(stage.app.store))
    assert counts.states == {"pending": 1, "publishing": 0, "parked": 2}
    assert (counts.oldest_pending, counts.held_lanes) == (90, 1)
    assert block(count_messages(stage.app.store, "other")).states["parked"] == 0


def test_a_message_is_shown_whole_until_it_is_sent(stage: Stage) -> None:
    assert block(show_message(stage.app.store, "default", "a")).body == {"order": "a"}
    sent = block(show_message(stage.app.store, "default", "b"))
    assert (sent.body, sent.receipt) == (None, "ok")
    with pytest.raises(Misuse, match="no message"):
        block(show_message(stage.app.store, "default", "zz"))
    with pytest.raises(Misuse, match="no message"):
        block(show_message(stage.app.store, "other", "a"))


@pytest.mark.parametrize("key", ["a", "1"])
def test_a_resent_message_keeps_its_key_and_place(stage: Stage, key: str) -> None:
    stage.broker.always = {}
    assert block(resend(stage.app.store, "default", key, by="ann", note="queue made")).state == "pending"
    stage.until_idle()
    assert stage.states()[key] == "sent"
    assert stage.message(key).by == "ann"
    assert stage.broker.keys == (["b", "a"] if key == "a" else ["b", "1", "2"])


@pytest.mark.parametrize(("key", "published"), [("a", ["b", "NEW"]), ("1", ["b", "NEW", "2"])])
def test_a_message_is_resent_as_new_in_its_old_place(stage: Stage, key: str, published: list[str]) -> None:
    stage.broker.always = {}
    fresh = block(resend(stage.app.store, "default", key, by="ann", as_new=True))
    assert fresh.key.startswith("tp_") and fresh.state == "pending"
    old = block(show_message(stage.app.store, "default", key))
    assert (old.state, old.note) == ("dropped", f"resent as {fresh.key}")
    stage.until_idle()
    assert stage.broker.keys == [fresh.key if one == "NEW" else one for one in published]
    sent = next(message for message in stage.broker.taken if message.key == fresh.key)
    assert sent.headers["ce-id"] == fresh.key  # receivers see another message
    with pytest.raises(Misuse, match="is dropped"):
        block(resend(stage.app.store, "default", key, by="ann", as_new=True))


def test_resending_as_new_goes_on_where_a_killed_process_stopped(stage: Stage) -> None:
    stage.broker.always = {}
    write, calls = stage.app.store.write, iter([True, False])

    def dying(*writes: Any, **more: Any) -> Any:
        if not next(calls, True):
            raise SystemExit  # the new message is written, and the old one not dropped
        return write(*writes, **more)

    stage.app.store.write = dying  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        block(resend(stage.app.store, "default", "a", by="ann", as_new=True))
    stage.app.store.write = write  # type: ignore[method-assign]
    block(resend(stage.app.store, "default", "a", by="ann", as_new=True))
    stage.until_idle()
    assert len([key for key in stage.broker.keys if key.startswith("tp_")]) == 1


def test_a_skipped_message_is_resent_as_new() -> None:
    stage = Stage(on_parked="skip")
    stage.send("1", "2", order="o")
    stage.broker.always["1"] = NO
    stage.until_idle()
    fresh = block(resend(stage.app.store, "default", "1", by="ann", as_new=True))
    stage.until_idle()
    assert stage.broker.keys == ["2", fresh.key]
    assert stage.states()["1"] == "dropped"
    stage.app.close()


def test_a_message_keeps_its_latest_attempts_also_when_it_is_sent(stage: Stage) -> None:
    stage.send("c")
    stage.broker.answers["c"] = [NO_ROUTE, SILENCE]
    for _ in range(3):
        stage.until_idle()
        stage.clock.advance(10)
    shown = block(show_message(stage.app.store, "default", "c"))
    assert shown.state == "sent"
    assert [(one.outcome, one.why) for one in shown.attempts] == [
        ("refused", "no such queue"),
        ("unconfirmed", "no answer"),
    ]
    assert shown.attempts[0].at < shown.attempts[1].at < (shown.sent_at or 0)
    assert block(show_message(stage.app.store, "default", "b")).attempts == []


def test_no_more_than_ten_attempts_are_kept(stage: Stage) -> None:
    message = stage.message("a")
    for number in range(30):
        message = decide(message, Refused(f"no {number}"), Retry(attempts=100), float(number), lambda: 0.5).message  # type: ignore[union-attr]
    assert [one.why for one in message.attempts] == [f"no {number}" for number in range(20, 30)]


@pytest.mark.parametrize("key", ["a", "1"])
def test_a_dropped_message_is_not_published_and_those_behind_it_are(stage: Stage, key: str) -> None:
    block(drop(stage.app.store, "default", key, by="ann"))
    stage.until_idle()
    assert stage.states()[key] == "dropped"
    assert stage.broker.keys == (["b"] if key == "a" else ["b", "2"])


def test_only_what_waits_can_be_resent_or_dropped(stage: Stage) -> None:
    for act in (resend, drop):
        with pytest.raises(Misuse, match="is sent"):
            block(act(stage.app.store, "default", "b", by="ann"))
    with pytest.raises(Misuse, match="is pending"):
        block(resend(stage.app.store, "default", "2", by="ann"))
    block(drop(stage.app.store, "default", "2", by="ann"))
    assert stage.states()["2"] == "dropped"


def test_a_skipped_message_is_resent_on_its_own(stage: Stage) -> None:
    stage = Stage(on_parked="skip")
    stage.send("1", "2", order="o")
    stage.broker.always["1"] = NO
    stage.until_idle()
    assert stage.states() == {"1": "parked", "2": "sent"}
    stage.broker.always = {}
    block(resend(stage.app.store, "default", "1", by="ann"))
    stage.until_idle()
    assert stage.broker.keys == ["2", "1"]
    stage.app.close()
