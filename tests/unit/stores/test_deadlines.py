"""The deadlines of transactions: one thread that acts when a block takes too long."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from twiceproof.stores import deadlines as module
from twiceproof.stores.deadlines import Deadlines

PATIENT = 20.0
LONG = 3_600.0


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    found = Deadlines()
    yield found
    found._thread.stop(PATIENT)


def test_what_takes_too_long_is_acted_upon_in_order(deadlines: Deadlines) -> None:
    acted: list[str] = []
    second = threading.Event()
    with deadlines.after((0.0, lambda: acted.append("first")), (0.01, second.set)):
        assert second.wait(PATIENT)
    assert acted == ["first"]


def test_what_ends_in_time_is_left_alone(deadlines: Deadlines) -> None:
    acted: list[str] = []
    with deadlines.after((LONG, lambda: acted.append("late"))):
        pass
    assert deadlines._watched == {} and acted == []


def test_a_nearer_deadline_is_met_while_a_far_one_is_watched(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK", LONG)
    near = threading.Event()
    with deadlines.after((LONG, lambda: None)):
        wait_until_asleep(deadlines)
        with deadlines.after((0.01, near.set)):
            assert near.wait(PATIENT)


def test_an_idle_thread_sleeps_and_is_woken_for_the_next(deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK", 0.001)
    for _ in range(2):
        acted = threading.Event()
        with deadlines.after((0.0, acted.set)):
            assert acted.wait(PATIENT)
        wait_until_asleep(deadlines)


def test_an_act_that_fails_does_not_end_the_thread(deadlines: Deadlines, caplog: pytest.LogCaptureFixture) -> None:
    acted = threading.Event()
    with deadlines.after((0.0, lambda: 1 / 0), (0.01, acted.set)):
        assert acted.wait(PATIENT)
    assert "could not be cut: division by zero" in caplog.text


def wait_until_asleep(deadlines: Deadlines) -> None:
    """Until it has decided to sleep for longer than a test may take."""
    asleep = threading.Event()
    for _ in range(int(PATIENT / 0.001)):
        if deadlines._wakes_at > module.time.monotonic() + PATIENT:
            return
        asleep.wait(0.001)
    raise AssertionError("it does not go to sleep")
