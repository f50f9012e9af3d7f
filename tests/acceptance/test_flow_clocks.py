"""A worker whose wall clock is set forwards or back in the middle of a run: waits and leases go by the store's time."""

from __future__ import annotations

from contextvars import Context
from email.utils import formatdate

import pytest

from tests.acceptance.later import pass_time
from twiceproof import App, InProgress, NotDone, Retry, Waiting
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.stores.grouped import GroupedStore

LEASE = 600.0
SPAN = 6_000.0
SLACK = 120.0  # for a slow machine: less than any of the shifts
SHIFTS = {1: -3_600.0, 2: -300.0, 3: 300.0, 4: 3_600.0}  # by order


def open_app(place):
    """Its clock is its own; the store has another."""
    clock = ShiftedClock()
    app = App(GroupedStore(place.engine(), clock=clock), best_effort=True, clock=clock)
    app.runtime.roll = lambda: 1.0  # no jitter: the backoff is as declared
    return app


class Refused(NotDone):
    """The other side says when to come again, by the clock on the wall."""

    def __init__(self, until):
        super().__init__("not now")
        self.headers = {"Retry-After": formatdate(until, usegmt=True)}


def store_time(app):
    return app.store.scan("claim").block().now


def sleeping(app, order, first):
    app.sleep(SPAN)


def waiting(app, order, first):
    assert app.wait_for("paid", timeout=SPAN, default="too late") == "too late"


def backing_off(app, order, first):
    @app.step(repeat="safe", retry=Retry(attempts=2, first=SPAN, most=SPAN))
    def charge(order):
        if first:
            raise NotDone("not now")

    charge(order)


def told_when(app, order, first):
    @app.step(repeat="never", retry=Retry(attempts=2, first=0.001))
    def charge(order):
        if first:
            raise Refused(store_time(app) + SPAN)

    charge(order)


def declare(app, place, wait, first):
    """In the first process, the clock jumps between a step and the wait."""

    @app.step(repeat="safe")
    def jump(order):
        place.do(f"jump {order}")
        app.clock.advance(SHIFTS[order])

    @app.flow(key="order:{order}", lease=LEASE)
    def patient(order):
        jump(order)
        wait(app, order, first)
        return f"{order} went on"

    return patient


def parked_by(flow, order):
    with pytest.raises(Waiting) as caught:
        flow(order)
    return caught.value.data["until"]


@pytest.mark.parametrize("wait", [sleeping, waiting, backing_off, told_when])
def test_a_wait_ends_neither_early_nor_late(place, wait):
    for order in SHIFTS:
        with open_app(place) as app:
            until = parked_by(declare(app, place, wait, first=True), order)
            assert until - store_time(app) == pytest.approx(SPAN, abs=SLACK)
    with open_app(place) as app:
        patient = declare(app, place, wait, first=False)
        pass_time(place, SPAN - SLACK)
        for order, shift in SHIFTS.items():
            app.clock.shift = -shift
            parked_by(patient, order)
            assert app.worker().run(until_idle=True) == 0
        assert {app.attach(flow="patient", key=f"order:{order}").state for order in SHIFTS} == {"waiting"}
        pass_time(place, SLACK)
        app.worker().run(until_idle=True)
        states = {order: app.attach(flow="patient", key=f"order:{order}").state for order in SHIFTS}
        assert states == dict.fromkeys(SHIFTS, "done")
    assert place.effects() == [f"jump {order}" for order in SHIFTS]


def refused(app, place, order):
    """Somebody else's call, in a context of its own: it is no part of the run under way."""
    with pytest.raises(InProgress) as caught:
        Context().run(declare(app, place, sleeping, first=False), order)
    return caught.value.data["retry_after"]


def test_a_lease_holds_whatever_the_wall_clocks_of_both_sides_say(place):
    with open_app(place) as mine, open_app(place) as other:

        def rival(app, order, first):
            other.clock.shift = -SHIFTS[order]
            assert 0 < refused(other, place, order) <= LEASE
            pass_time(place, LEASE - SLACK)
            assert 0 < refused(other, place, order) <= SLACK

        patient = declare(mine, place, rival, first=True)
        assert [patient(order) for order in SHIFTS] == [f"{order} went on" for order in SHIFTS]
    assert place.effects() == [f"jump {order}" for order in SHIFTS]


def test_what_was_written_under_a_clock_an_hour_ahead_goes_on_when_it_is_right(place):
    with open_app(place) as app:

        @app.flow(key="order:{order}", rate="1/m")
        def sync(order):
            place.do(f"order {order}")

        @app.every("1m")
        def tidy():
            place.do("tick")

        @app.poll(every="1m", start=sync)
        def new_orders(since):
            place.do("poll")
            return []

        def look():
            app.worker().run(until_idle=True)

        look()
        pass_time(place, 3_600.0)
        sync.start(1)
        sync.start(2)
        look()
        pass_time(place, -3_600.0)
        look()
        before = place.effects()
        for _ in range(3):
            pass_time(place, 61.0)
            look()
        after = place.effects()[len(before) :]
    assert (before.count("order 1") + before.count("order 2"), after.count("tick"), after.count("poll")) == (1, 3, 3)
    assert {"order 1", "order 2"} <= set(before + after)
    assert len(after) == 7
