"""`kill -9` of a worker at each boundary of a guarded call, on each store."""

from __future__ import annotations

import signal

import pytest

from tests.acceptance.children import Child, die
from tests.acceptance.wrappers import Dying
from twiceproof import NeedsReview

LEASE = 30.0

BOUNDARIES = ["before the take", "after the take", "before the effect", "after the effect", "after the record"]


def guarded(app, place, repeat, boundary=""):
    @app.once(key="order:{order_id}", lease=LEASE, repeat=repeat)
    def charge(order_id):
        if boundary == "before the effect":
            die()
        place.do(f"charge {order_id}")
        if boundary == "after the effect":
            die()
        return f"receipt {order_id}"

    return charge


def wrapper(boundary):
    if boundary == "before the take":
        return lambda engine: Dying(engine, 1, after=False)
    if boundary == "after the take":
        return lambda engine: Dying(engine, 1, after=True)
    if boundary == "after the record":
        return lambda engine: Dying(engine, 2, after=True)
    return lambda engine: engine


def crash(place, repeat, boundary):
    """One worker dies at the boundary; then its lease runs out."""
    child = Child(lambda _: guarded(place.app(wrapper(boundary)), place, repeat, boundary)(17))
    assert child.end() == -signal.SIGKILL
    place.advance(LEASE + 1)


def call(place, repeat):
    with place.app() as app:
        try:
            return guarded(app, place, repeat)(17)
        except NeedsReview:
            return "in review"


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_work_that_must_never_be_repeated_is_done_once_or_parked(place, boundary):
    crash(place, "never", boundary)
    answers = [call(place, "never"), call(place, "never")]
    unknown = boundary in ("after the take", "before the effect", "after the effect")
    assert answers == (["in review"] * 2 if unknown else ["receipt 17"] * 2)
    happened = boundary not in ("after the take", "before the effect")
    assert place.effects() == (["charge 17"] if happened else [])


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_work_that_is_declared_safe_is_done_in_the_end(place, boundary):
    """The control as well: without the parking, a crash after the effect makes it happen twice."""
    crash(place, "safe", boundary)
    assert [call(place, "safe"), call(place, "safe")] == ["receipt 17"] * 2
    assert place.effects() == ["charge 17"] * (2 if boundary == "after the effect" else 1)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_second_crash_while_the_first_is_being_parked_changes_nothing(place, after):
    crash(place, "never", "after the effect")
    second = Child(lambda _: guarded(place.app(lambda engine: Dying(engine, 1, after=after)), place, "never")(17))
    assert second.end() == -signal.SIGKILL
    assert [call(place, "never"), call(place, "never")] == ["in review"] * 2
    assert place.effects() == ["charge 17"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_second_crash_while_safe_work_is_taken_over_is_taken_over_again(place, after):
    crash(place, "safe", "after the take")
    second = Child(lambda _: guarded(place.app(lambda engine: Dying(engine, 1, after=after)), place, "safe")(17))
    assert second.end() == -signal.SIGKILL
    place.advance(2 * LEASE + 2)
    assert call(place, "safe") == "receipt 17"
    assert place.effects() == ["charge 17"]
