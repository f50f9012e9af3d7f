"""Ordered messages: in the order of their sends, whatever is refused, resent or raced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.outbox.stand_in import NO_ROUTE, SILENCE
from tests.unit.outbox.test_relay import Stage
from twiceproof import PayloadMismatch
from twiceproof.brokers.base import Refused
from twiceproof.outbox.lanes import LaneState, append_writes, lane_address
from twiceproof.outbox.sending import MessageOrigin, Sending, make_messages
from twiceproof.records import Written

PER_BATCH = 40  # messages


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.relay.close()
    stage.app.close()


def records(stage: Stage, kind: str, state: str | None = None) -> int:
    return len(stage.app.store.scan(kind, state=state, limit=10_000).block().records)


def test_messages_of_one_order_key_are_published_in_order_and_the_lane_goes(stage: Stage) -> None:
    keys = [f"m{n}" for n in range(25)]
    stage.send(*keys, order="o")
    stage.until_idle()
    assert stage.broker.keys == keys
    assert set(stage.states().values()) == {"sent"}
    assert records(stage, "ticket") == records(stage, "message", "lane") == 0
    stage.send("later", order="o")
    stage.until_idle()
    assert stage.broker.keys == [*keys, "later"]


def test_the_same_key_in_a_lane_is_one_message_and_another_body_a_mismatch(stage: Stage) -> None:
    stage.send("a", order="o")
    stage.send("a", order="o")
    with pytest.raises(PayloadMismatch):
        stage.app.send("orders.paid", {"order": "other"}, key="a", order="o")
    stage.until_idle()
    assert stage.broker.keys == ["a"]
    stage.send("a", order="o")  # also after it was published
    stage.until_idle()
    assert stage.broker.keys == ["a"]


@pytest.mark.parametrize("answer", [NO_ROUTE, SILENCE])
def test_behind_one_that_was_not_confirmed_the_others_wait(stage: Stage, answer: object) -> None:
    stage.send("a", "b", "c", order="o")
    stage.send("x", order="other")
    stage.broker.answers["b"] = [answer]  # type: ignore[list-item]
    stage.until_idle()
    assert stage.states() == {"a": "sent", "b": "pending", "c": "pending", "x": "sent"}
    stage.clock.advance(1)
    stage.until_idle()
    first = list(dict.fromkeys(stage.broker.keys))
    assert [key for key in first if key != "x"] == ["a", "b", "c"]


def test_sending_behind_many_costs_two_commits(stage: Stage) -> None:
    """The first is refused, and tells the number of the next place."""
    stage.send(*(f"m{n}" for n in range(50)), order="o")
    tried: list[object] = []
    write = stage.app.store.write
    stage.app.store.write = lambda *writes, **more: tried.append(writes) or write(*writes, **more)  # type: ignore[method-assign, func-returns-value]
    stage.send("last", order="o")
    assert len(tried) == 2


def fill(stage: Stage, count: int) -> None:
    """Write a lane of so many messages, in batches as large as the store takes."""
    lane, known = lane_address("default", "main", "o"), LaneState()
    for first in range(0, count, PER_BATCH):
        messages = [_message(stage, f"m{n}") for n in range(first, min(first + PER_BATCH, count))]
        writes: list[Any] = []
        for number, message in enumerate(messages):
            made = append_writes(lane, [message], LaneState(known.version, first + number + 1))
            writes += [made[0], made[2]]
        made = append_writes(lane, messages[-1:], LaneState(known.version, first + len(messages)))
        written = stage.app.store.write(*writes, made[1]).block()
        assert isinstance(written, Written)
        known = LaneState(written.version, first + len(messages) + 1)


def _message(stage: Stage, key: str) -> Any:
    given = Sending("orders.paid", {"order": key}, key, "o")
    return make_messages(stage.app.routing, given, key, MessageOrigin("test"))[0]


@pytest.mark.parametrize("behind", [60, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_poison_head_costs_one_commit_per_retry_however_many_wait_behind(stage: Stage, behind: int) -> None:
    fill(stage, behind)
    stage.broker.always["m0"] = NO_ROUTE
    commits: list[object] = []
    reads: list[int] = []
    stage.app.store.on_commit.append(commits.append)  # type: ignore[attr-defined]
    scan = stage.app.store.scan
    stage.app.store.scan = lambda *args, **kwargs: reads.append(kwargs["limit"]) or scan(*args, **kwargs)  # type: ignore[method-assign, func-returns-value]
    stage.until_idle()
    assert len(commits) == 2  # taken, and put off
    assert len(reads) == 1 and reads[0] <= 1_000  # its first tickets, not all of them
    assert stage.message("m0").starts == 1
    assert stage.message("m1").starts == 0


def test_a_parked_head_holds_the_lane_and_what_comes_later(stage: Stage) -> None:
    stage.send("a", "b", order="o")
    stage.broker.always["a"] = Refused("no", final=True)
    stage.until_idle()
    stage.send("c", order="o")
    stage.clock.advance(1e5)
    stage.until_idle()
    assert stage.states() == {"a": "parked", "b": "pending", "c": "pending"}
    assert records(stage, "message", "held") == 1


def test_with_skip_a_parked_head_lets_the_others_pass() -> None:
    stage = Stage(on_parked="skip")
    stage.send("a", "b", "c", order="o")
    stage.broker.always["a"] = Refused("no", final=True)
    stage.until_idle()
    assert stage.states() == {"a": "parked", "b": "sent", "c": "sent"}
    assert stage.broker.keys == ["b", "c"]
    stage.app.close()


def test_a_message_that_lands_while_its_lane_is_emptied_is_not_stranded(stage: Stage) -> None:
    stage.send("a", order="o")

    def meanwhile() -> None:
        stage.broker.after = lambda: None
        stage.send("b", order="o")

    stage.broker.after = meanwhile
    stage.until_idle()
    assert stage.broker.keys == ["a", "b"]
    assert stage.states() == {"a": "sent", "b": "sent"}
    assert stage.relay.counts["not marked"] == 0


def test_a_lane_that_is_being_published_is_not_handed_out_again_by_a_send(stage: Stage) -> None:
    stage.send("a", order="o")
    other = stage.new_relay()

    def meanwhile() -> None:
        stage.broker.after = lambda: None
        stage.send("b", order="o")
        other.run_once()

    stage.broker.after = meanwhile
    stage.until_idle()
    assert stage.broker.keys == ["a", "b"]  # none of them twice
    other.close()


def test_a_relay_that_lost_its_lane_marks_nothing(stage: Stage) -> None:
    stage.send("a", "b", order="o")
    other = stage.new_relay()

    def meanwhile() -> None:
        stage.broker.after = lambda: None
        stage.clock.advance(60)
        stage.broker.answers["b"] = [NO_ROUTE]
        other.run_once()

    stage.broker.after = meanwhile
    stage.relay.run_once()
    assert stage.relay.counts["not marked"] == 1
    assert stage.states() == {"a": "sent", "b": "pending"}  # as the other relay left it
    assert list(dict.fromkeys(stage.broker.keys)) == ["a", "b"]
    other.close()


def test_a_lane_longer_than_a_batch_is_emptied_in_order(stage: Stage) -> None:
    keys = [f"m{n}" for n in range(130)]
    stage.send(*keys, order="o")
    stage.until_idle()
    assert stage.broker.keys == keys
    assert max(len(asked) for asked in stage.broker.asked) < 60  # what a batch of this store can record


def test_order_keys_of_two_tenants_are_two_lanes(stage: Stage) -> None:
    stage.broker.always["a"] = NO_ROUTE
    stage.send("a", order="o")
    stage.app.of("other").send("orders.paid", {}, key="b", order="o")
    stage.until_idle()
    assert stage.states() == {"a": "pending", "b": "sent"}
