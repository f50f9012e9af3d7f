"""A batch on every store, killed in the middle and gone on with by another process."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.acceptance.children import Child, die
from twiceproof import NeedsReview

ITEMS, DIES_AT, AT_ONCE, MOST_BEHIND = 200, 100, 4, 64


def declare(place, app, repeat, dies_at=None):
    @app.step(repeat=repeat)
    def send(n: int) -> int:
        place.do(str(n))
        if n == dies_at:
            die()
        return 2 * n

    @app.flow(key="batch:{name}")
    def batch(name: str) -> int:
        return sum(app.each(range(ITEMS), send, key="{item}", concurrency=AT_ONCE))

    return batch


def crash(place, repeat):
    child = Child(lambda _: declare(place, place.app(), repeat, DIES_AT)("x"))
    assert child.end() == -signal.SIGKILL
    place.advance(31)


def test_a_killed_batch_is_finished_and_little_of_it_is_done_again(place):
    crash(place, "safe")
    with place.app() as app:
        assert declare(place, app, "safe")("x") == ITEMS * (ITEMS - 1)
    times = Counter(place.effects())
    assert len(times) == ITEMS
    assert sum(times.values()) - ITEMS <= MOST_BEHIND + 2 * AT_ONCE


def test_in_a_killed_batch_nothing_that_may_not_be_repeated_is_done_twice(place):
    """What was under way is for a person; everything else is done, once."""
    crash(place, "never")
    with place.app() as app:
        with pytest.raises(NeedsReview, match="send"):
            declare(place, app, "never")("x")
        states = app.progress(declare(place, app, "never").flow.handle("batch:x").id)["send"]
    times = Counter(place.effects())
    assert max(times.values()) == 1
    assert 1 <= states["unknown"] <= AT_ONCE
    assert states["done"] + states["unknown"] == ITEMS
