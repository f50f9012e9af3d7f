"""A sender's transaction that stays open delays its own lane, and no other."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.unit.outbox.stand_in import StandInBroker
from twiceproof import App
from twiceproof.outbox.lane_relay import LockedLanes
from twiceproof.outbox.message import message_of
from twiceproof.outbox.relay import TargetRelay

PATIENCE = 10.0  # seconds for which the store would wait for a lock


class OpenSender:
    """Sends an ordered message in a transaction that is not committed until it is told."""

    def __init__(self, dsn: str, app: App) -> None:
        self.db = psycopg.connect(dsn)
        self.app = app

    def send(self, key: str, order: str) -> None:
        with self.app.outbox(self.db) as outbox:
            outbox.send("orders.paid", {"order": key}, key=key, order=order)


class LockStage:
    def __init__(self, dsn: str) -> None:
        self.app = App(dsn)
        self.broker = StandInBroker()
        self.app.broker("main", self.broker)
        self.app.route("orders.*", to="main")
        self.sender = OpenSender(dsn, self.app)
        self.relay = TargetRelay(
            self.app.store,
            self.app.routing.targets["main"],
            self.app.tenants.known,
            clock=self.app.runtime.clock,
            roll=lambda: 1.0,
        )

    def send(self, key: str, order: str) -> None:
        self.app.send("orders.paid", {"order": key}, key=key, order=order)

    def turns(self) -> float:
        began = time.monotonic()
        while self.relay.run_once() <= 0:
            pass
        return time.monotonic() - began

    def states(self) -> dict[str, str]:
        records = self.app.store.scan("message", limit=1_000).block().records
        return {message_of(one).key: one.state for one in records if one.state not in ("lane", "held")}


@pytest.fixture
def stage(postgres_dsn: str) -> Iterator[LockStage]:
    with ExitStack() as stack:
        stage = LockStage(postgres_dsn)
        stack.callback(stage.app.close)
        stack.callback(stage.relay.close)
        stack.callback(stage.sender.db.close)
        yield stage


def once(action: Any) -> Any:
    """Return a function that does it at its first call."""
    left = [action]
    return lambda: left.pop()() if left else None


@pytest.mark.server
def test_a_lane_that_is_locked_while_it_is_published_delays_no_other_lane(stage: LockStage) -> None:
    stage.send("slow-1", "slow")
    stage.send("fast-1", "fast")
    stage.broker.after = once(lambda: stage.sender.send("slow-2", "slow"))
    assert stage.turns() < PATIENCE / 2
    assert stage.states() == {"slow-1": "pending", "fast-1": "sent"}
    stage.send("fast-2", "fast")
    assert stage.turns() < PATIENCE / 2
    assert stage.states()["fast-2"] == "sent"
    stage.sender.db.commit()
    stage.turns()
    stage.turns()
    assert set(stage.states().values()) == {"sent"}
    assert sorted(stage.broker.keys) == ["fast-1", "fast-2", "slow-1", "slow-2"]  # none of them twice
    assert stage.broker.keys.index("slow-1") < stage.broker.keys.index("slow-2")


def lock_after_hand_out(stage: LockStage, monkeypatch: pytest.MonkeyPatch) -> None:
    due, lock = stage.app.store.due, once(lambda: stage.sender.send("slow-2", "slow"))

    def due_and_locked(*given: Any, **more: Any) -> Any:
        class Answered:
            def block(self) -> Any:
                found = due(*given, **more).block()
                lock()
                return found

        return Answered()

    monkeypatch.setattr(stage.app.store, "due", due_and_locked)


@pytest.mark.server
def test_a_lane_that_is_locked_between_hand_out_and_take_delays_no_other_lane(
    stage: LockStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("slow-1", "slow")
    stage.send("fast-1", "fast")
    lock_after_hand_out(stage, monkeypatch)
    assert stage.turns() < PATIENCE / 2
    assert stage.states() == {"slow-1": "pending", "fast-1": "sent"}
    stage.sender.db.rollback()
    stage.turns()
    assert stage.states() == {"slow-1": "sent", "fast-1": "sent"}  # at once: its lease is not waited for
    assert sorted(stage.broker.keys) == ["fast-1", "slow-1"]


@pytest.mark.server
def test_a_relay_that_ends_waits_a_little_for_a_lane_that_is_locked(stage: LockStage) -> None:
    stage.send("slow-1", "slow")
    stage.broker.after = once(lambda: stage.sender.send("slow-2", "slow"))
    stage.turns()
    stage.sender.db.commit()
    stage.relay.close()
    assert stage.states() == {"slow-1": "sent", "slow-2": "pending"}


@pytest.mark.server
def test_a_relay_that_ends_gives_back_a_lane_that_it_could_not_take(
    stage: LockStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("slow-1", "slow")
    lock_after_hand_out(stage, monkeypatch)
    stage.turns()
    assert stage.broker.keys == []
    stage.sender.db.commit()
    stage.relay.close()
    assert stage.app.relay().run(until_idle=True) == 2  # at once: it is not hidden until a lease is over
    assert stage.broker.keys == ["slow-1", "slow-2"]


def test_a_lane_that_is_locked_for_long_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    locked = LockedLanes()
    record: Any = None
    locked.untaken = {"default/~lane/main/order:17": record}
    with caplog.at_level(logging.WARNING, "twiceproof.relay"):
        for now in (100.0, 104.9):
            locked.look(now)
        assert not caplog.records
        for now in (105.0, 106.0, 200.0):
            locked.look(now)
        (line,) = [one.getMessage() for one in caplog.records]
    assert "order key order:17 of main (tenant default) for 5 s" in line
    locked.untaken = {}
    locked.look(201.0)
    locked.untaken = {"default/~lane/main/order:17": record}
    locked.look(202.0)
    assert len(caplog.records) == 1  # locked anew, and not for long
