"""A worker stopped with SIGSTOP inside a step past its lease, and continued: its run is no longer its own."""

from __future__ import annotations

import signal

import pytest

from tests.acceptance.children import Child, wake
from tests.acceptance.journeys import entries
from tests.acceptance.later import pass_time
from tests.acceptance.wrappers import LedgerBlind
from twiceproof import ClaimLost, NeedsReview
from twiceproof.claims.claim import address_of
from twiceproof.claims.queries import evidence_of
from twiceproof.operations import block

LEASE = 600.0  # longer than any test takes: no heartbeat comes in between
AT = address_of("default", "ship", "order:17", "run")


def nothing():
    """What happens in a step, or between two, by default."""


def declare(app, place, repeat, who, inside=nothing, between=nothing):
    def step(name, how, pause=nothing):
        @app.step(repeat=how, name=name)
        def work(order):
            pause()
            place.do(f"{who} {name}")
            return f"{name} of {who}"

        return work

    pick, pack, post = step("pick", "safe"), step("pack", repeat, inside), step("post", "safe")

    @app.flow(key="order:{order}", lease=LEASE)
    def ship(order):
        picked = pick(order)
        between()
        return [picked, pack(order), post(order)]

    return ship


def at_work(place, repeat, who, where, wrap=lambda engine: engine):
    """A worker that has got as far as `pack`: inside it, or between it and the step before."""

    def work(child):
        def pause():
            child.tell("here")
            child.wait_for_go()

        with place.app(wrap) as app:
            try:
                child.tell(declare(app, place, repeat, who, **{where: pause})(17))
            except ClaimLost as error:
                child.tell(f"ClaimLost: {error.state}")

    child = Child(work)
    assert child.hear() == "here"
    return child


def zombie(place, repeat, wrap=lambda engine: engine):
    child = at_work(place, repeat, "zombie", "inside", wrap)
    child.send(signal.SIGSTOP)
    pass_time(place, LEASE + 1)
    return child


def evidence_in(app):
    return [(piece.step, bytes(piece.result)) for piece in block(evidence_of(app.store, AT.space))]


def states(app):
    return {name: entry.state for name, entry in entries(app, "ship", "order:17").items()}


def test_a_zombie_cannot_write_into_a_run_that_has_ended(place):
    child = zombie(place, "safe")
    with place.app() as app:
        ship = declare(app, place, "safe", "second")
        result = ship(17)
        assert result == ["pick of zombie", "pack of second", "post of second"]
        assert wake(child) == "ClaimLost: done"
        assert evidence_in(app) == [("pack", b'"pack of zombie"')]
        assert ship(17) == result
    assert place.effects() == ["zombie pick", "second pack", "second post", "zombie pack"]


def test_a_zombie_in_what_is_never_repeated_leaves_evidence_for_the_review(place):
    child = zombie(place, "never")
    with place.app() as app:
        ship = declare(app, place, "never", "second")
        with pytest.raises(NeedsReview, match="pack"):
            ship(17)
        assert wake(child) == "ClaimLost: review"
        assert states(app) == {"pick": "done", "pack": "unknown"}
        assert evidence_in(app) == [("pack", b'"pack of zombie"')]
        (found,) = app.store.scan("evidence", space=AT.space).block().records
        app.settle_run("ship/order:17", "happened", by="ann", evidence=found.at.key)
        assert ship(17) == ["pick of zombie", "pack of zombie", "post of second"]
    assert place.effects() == ["zombie pick", "zombie pack", "second post"]


def both_at_work(place, wrap=lambda engine: engine):
    """A zombie wakes up while who took over is on its way to the step that it was in."""
    first = zombie(place, "safe", wrap)
    second = at_work(place, "safe", "second", "between")
    return wake(first), second


def test_a_zombie_does_not_go_on_to_its_next_step_while_another_is_at_work(place):
    said, second = both_at_work(place)
    assert said == "ClaimLost: held"
    assert place.effects() == ["zombie pick", "zombie pack"]
    with place.app() as app:
        assert states(app) == {"pick": "done"}
    assert wake(second) == ["pick of zombie", "pack of second", "post of second"]
    assert place.effects() == ["zombie pick", "zombie pack", "second pack", "second post"]


def test_control_without_the_fence_the_zombie_writes_and_goes_on(place):
    said, second = both_at_work(place, LedgerBlind)
    assert said == ["pick of zombie", "pack of zombie", "post of zombie"]
    assert place.effects() == ["zombie pick", "zombie pack", "zombie post"]
    with place.app() as app:
        assert states(app) == {"pick": "done", "pack": "done", "post": "done"}
        assert evidence_in(app) == []
    assert wake(second) == "ClaimLost: done"


def test_a_worker_that_was_stopped_and_not_taken_over_goes_on(place):
    """The twin: its lease is over, but the run is still its own."""
    child = zombie(place, "never")
    assert wake(child) == ["pick of zombie", "pack of zombie", "post of zombie"]
    with place.app() as app:
        assert evidence_in(app) == []
