"""A store or a broker that is away for long, relays that wake up late, and sweeps that race a late sender."""

from __future__ import annotations

import logging
import random
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.outbox.stand_in import StandInBroker
from twiceproof import App, Retry
from twiceproof.brokers.base import Refused
from twiceproof.claims.retention import sweep
from twiceproof.errors import StoreUnavailable
from twiceproof.operations import block
from twiceproof.outbox import relay as relay_module
from twiceproof.outbox.message import message_of
from twiceproof.outbox.relay import TargetRelay
from twiceproof.outbox.sending import MessageOrigin, Sending, make_messages, write_unordered
from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

HOUR = 3_600.0


class Gate(MemoryEngine):
    """A store that answers nothing while it is shut."""

    shut = False

    def commit(self, batches: Any) -> Any:
        self._pass()
        return super().commit(batches)

    def fetch(self, addresses: Any) -> Any:
        self._pass()
        return super().fetch(addresses)

    def due(self, *asked: Any) -> Any:
        self._pass()
        return super().due(*asked)

    def _pass(self) -> None:
        if self.shut:
            raise StoreUnavailable("shut")


class OutageStage:
    def __init__(self, store: Any, clock: ManualClock) -> None:
        self.clock = clock
        self.app = App(store, clock=clock)
        self.broker = StandInBroker()
        self.app.broker("main", self.broker, retry=Retry(attempts=3, first=1, most="10m", within="2d"))
        self.app.route("orders.*", to="main")
        self.relay = self.new_relay()

    def new_relay(self) -> TargetRelay:
        target = self.app.routing.targets["main"]
        return TargetRelay(self.app.store, target, lambda: ["default"], clock=self.clock, roll=random.random)

    def states(self) -> dict[str, str]:
        found = self.app.store.scan("message", limit=10_000).block().records
        return {message_of(one).key: one.state for one in found if one.state not in ("lane", "held")}

    def close(self) -> None:
        self.relay.close()
        self.app.close()


@pytest.fixture
def gate() -> Gate:
    return Gate(ManualClock())


@pytest.fixture
def stage(gate: Gate) -> Iterator[OutageStage]:
    clock: Any = gate._clock
    stage = OutageStage(GroupedStore(gate, clock=clock), clock)
    yield stage
    stage.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[OutageStage]:
    stage = OutageStage(f"sqlite:///{tmp_path}/shop.db", ManualClock())
    yield stage
    stage.close()


def test_a_store_that_is_away_while_confirmations_arrive_loses_nothing(
    stage: OutageStage, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {f"m{n}" for n in range(20)} | {f"o{n}" for n in range(20)}
    for key in sorted(keys):
        stage.app.send("orders.paid", {}, key=key, order="o" if key[0] == "o" else None)
    stage.broker.after = lambda: setattr(gate, "shut", True)
    began = stage.clock.monotonic()
    with caplog.at_level(logging.INFO, "twiceproof.relay"):
        while stage.clock.monotonic() < began + 60:
            stage.clock.advance(max(0.01, stage.relay.run_once()))
        assert set(stage.broker.keys) == keys  # confirmed, and nothing could be marked
        assert len(stage.broker.asked) == 1
        gate.shut = False
        assert set(stage.states().values()) == {"pending"}
        stage.broker.after = lambda: None
        for _ in range(10):
            stage.clock.advance(max(0.01, stage.relay.run_once()))
    assert set(stage.states().values()) == {"sent"}
    assert set(stage.broker.keys) == keys  # some of them twice, none under another key
    ordered = [key for key in dict.fromkeys(stage.broker.keys) if key[0] == "o"]
    assert ordered == sorted(ordered)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(",")[0] for line in lines] == ["the store cannot be reached", lines[-1]]
    assert lines[-1].startswith("the store is back after")


# -- relays that wake up late --------------------------------------------------------------------

ZOMBIES = 250  # of each kind


def awake_late(stage: OutageStage, count: int, order: str | None) -> int:
    """So many relays sleep after the confirmation; another one parks the message. How many of them mark it sent?"""
    marked = 0
    for n in range(count):
        key = f"{order}-{n}"
        stage.app.send("orders.paid", {}, key=key, order=order and f"{order}{n}")
        other = stage.new_relay()

        def meanwhile(key: str = key, other: TargetRelay = other) -> None:
            stage.broker.after = lambda: None
            stage.clock.advance(60)
            stage.broker.answers[key] = [Refused("no such queue", final=True)]
            other.run_once()

        stage.broker.after = meanwhile
        stage.relay.run_once()
        other.close()
        marked += stage.states()[key] != "parked"
    return marked


@pytest.mark.parametrize("order", [None, "o"])
def test_relays_that_slept_past_their_lease_mark_nothing(stage: OutageStage, order: str | None) -> None:
    assert awake_late(stage, ZOMBIES, order) == 0
    assert stage.relay.counts["not marked"] == ZOMBIES


def test_without_the_version_they_would(stage: OutageStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a mark on whatever is there by then."""
    write = relay_module.message_write

    def unconditional(record: Any, decision: Any, keep_sent: float) -> Any:
        return write(stage.app.store.read(record.at).block().record or record, decision, keep_sent)

    monkeypatch.setattr(relay_module, "message_write", unconditional)
    assert awake_late(stage, 5, None) == 5


# -- a broker that is away for long --------------------------------------------------------------

WAITING = 5_000  # F18 has 100,000
PER_COMMIT, PER_PUBLISH = 500, 500


def fill(stage: OutageStage, count: int) -> None:
    """Each commit a moment after the one before it."""
    origin = MessageOrigin("test")
    for first in range(0, count, PER_COMMIT):
        keys = [f"m{n}" for n in range(first, min(first + PER_COMMIT, count))]
        made = [make_messages(stage.app.routing, Sending("orders.paid", {"k": k}, k), k, origin)[0] for k in keys]
        block(write_unordered(stage.app.store, "default", made))
        stage.clock.advance(0.001)


def away_for_an_hour(stage: OutageStage, waiting: int) -> list[str]:
    """Return what is wrong about a relay whose broker is away for an hour, with so many messages."""
    fill(stage, waiting)
    stage.broker.away = True
    tracemalloc.start()
    try:
        began = stage.clock.monotonic()
        while stage.clock.monotonic() < began + HOUR:
            stage.clock.advance(max(0.01, stage.relay.run_once()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    asked = [len(keys) for keys in stage.broker.asked]
    probed = {key for keys in stage.broker.asked for key in keys}
    stage.broker.away = False
    while len(stage.broker.taken) < waiting:
        stage.clock.advance(max(0.01, stage.relay.run_once()))
    fresh = [int(key[1:]) // PER_COMMIT for key in stage.broker.keys if key not in probed]
    calls = len(stage.broker.asked) - len(asked)
    found = {
        f"{peak / 1e6:.0f} MB more": peak >= 20 * 1024 * 1024,
        f"{len(asked)} calls within the hour": len(asked) >= HOUR / 10,  # backoff
        f"{sum(asked)} messages handed over in vain": sum(asked) >= PER_PUBLISH + HOUR / 10,  # one at a time
        "not each message once": len(set(stage.broker.keys)) != waiting or len(stage.broker.keys) != waiting,
        "not in the order in which they were due": fresh != sorted(fresh),
        f"{calls} calls to catch up": calls >= waiting / PER_PUBLISH + 50,  # in full batches again
    }
    return [what for what, wrong in found.items() if wrong]


@pytest.mark.slow
def test_a_broker_that_is_away_for_an_hour_costs_no_memory_and_few_calls(on_disk: OutageStage) -> None:
    assert away_for_an_hour(on_disk, WAITING) == []


# -- sweeps --------------------------------------------------------------------------------------

RACES = 500


@pytest.mark.slow
def test_a_sweep_that_races_a_late_sender_leaves_one_message_or_the_answer(on_disk: OutageStage) -> None:
    """The time in which a key is known is over: it is still known, or it is a new message; never neither."""
    for n in range(RACES):
        key, earlier = f"m{n}", []
        on_disk.app.send("orders.paid", {}, key=key)
        while on_disk.relay.run_once() <= 0:
            pass
        on_disk.clock.advance(7 * 86_400 + 1)
        start = threading.Barrier(2)

        def send(key: str = key, earlier: list[bool] = earlier, start: threading.Barrier = start) -> None:
            start.wait()
            earlier.append(on_disk.app.send("orders.paid", {}, key=key).earlier)

        sender = threading.Thread(target=send)
        sender.start()
        start.wait()
        block(sweep(on_disk.app.store))
        sender.join()
        while on_disk.relay.run_once() <= 0:
            pass
        assert on_disk.broker.keys.count(key) == (1 if earlier == [True] else 2)
