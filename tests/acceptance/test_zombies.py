"""A worker stopped with SIGSTOP past its lease, and continued: it can no longer write, and what it knew is kept."""

from __future__ import annotations

import signal

import pytest

from tests.acceptance.children import Child, wake
from tests.acceptance.wrappers import FenceBlind
from twiceproof import ClaimLost, NeedsReview
from twiceproof.claims.claim import Done, InReview, address_of
from twiceproof.claims.queries import evidence_of
from twiceproof.operations import block

LEASE = 30.0
AT = address_of("default", "charge", "order:17")


def guarded(app, place, repeat, who, in_the_middle=lambda: None):
    @app.once(key="order:{order_id}", lease=LEASE, repeat=repeat)
    def charge(order_id):
        in_the_middle()
        place.do(f"{who} charges {order_id}")
        return f"receipt of {who}"

    return charge


def zombie(place, repeat, wrap=lambda engine: engine):
    """A worker that is stopped in the middle of its work; its lease runs out meanwhile."""

    def work(child):
        def in_the_middle():
            child.tell("in the middle")
            child.wait_for_go()

        with place.app(wrap) as app:
            try:
                child.tell(guarded(app, place, repeat, "zombie", in_the_middle)(17))
            except ClaimLost as error:
                child.tell(f"ClaimLost: {error.state}")

    child = Child(work)
    assert child.hear() == "in the middle"
    child.send(signal.SIGSTOP)
    place.advance(LEASE + 1)
    return child


def call(place, repeat):
    with place.app() as app:
        return guarded(app, place, repeat, "second")(17)


def look(place):
    with place.app() as app:
        return block(app.claims.look(AT)), block(evidence_of(app.store, AT.space))


def test_a_zombie_cannot_write_and_what_it_knew_is_evidence(place):
    child = zombie(place, "never")
    with pytest.raises(NeedsReview):
        call(place, "never")
    assert wake(child) == "ClaimLost: review"
    state, evidence = look(place)
    assert isinstance(state, InReview)
    assert [bytes(piece.result) for piece in evidence] == [b'"receipt of zombie"']
    assert place.effects() == ["zombie charges 17"]


def test_a_zombie_cannot_overwrite_the_result_of_who_took_over(place):
    child = zombie(place, "safe")
    assert call(place, "safe") == "receipt of second"
    assert wake(child) == "ClaimLost: done"
    state, evidence = look(place)
    assert isinstance(state, Done)
    assert bytes(state.result) == b'"receipt of second"'
    assert [bytes(piece.result) for piece in evidence] == [b'"receipt of zombie"']


def test_control_without_the_fence_the_zombie_overwrites_the_result(place):
    child = zombie(place, "safe", FenceBlind)
    assert call(place, "safe") == "receipt of second"
    assert wake(child) == "receipt of zombie"
    state, _ = look(place)
    assert bytes(state.result) == b'"receipt of zombie"'


def test_a_worker_that_wakes_up_in_time_is_not_disturbed(place):
    """The twin: stopped, but not past its lease."""
    child = zombie(place, "never")
    place.advance(-LEASE - 1 if "postgres" not in str(type(place)).lower() else 0)
    assert wake(child) == "receipt of zombie"
    assert isinstance(look(place)[0], Done)
