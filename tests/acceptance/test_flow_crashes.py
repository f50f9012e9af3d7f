"""`kill -9` of a worker at every boundary of a run, on each store, and again in the recovery: what the outside sees."""

from __future__ import annotations

import signal

import pytest

from tests.acceptance.children import die
from tests.acceptance.journeys import LEASE, RECEIPT, Journey, Purchase, Return, nothing
from tests.acceptance.later import pass_time
from tests.acceptance.wrappers import Dying

FEWEST = {Purchase: 14, Return: 5}  # commits of a clean run; a store that does not look first, or a slow one, has more
MOMENTS = {
    Purchase: [f"{when} {what}" for what in ("upsert", "charge", "invoice", "mail") for when in ("before", "after")],
    Return: [f"{when} {what}" for what in ("reserve", "announce", "recall", "release") for when in ("before", "after")],
}
LANDED = pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
KIND = pytest.mark.parametrize("kind", [Purchase, Return], ids=["purchase", "return"])


def dying(at, landed):
    """At its commit number `at`: before it is sent, or after it landed and before anybody hears of it."""
    return lambda engine: Dying(engine, at, after=landed)


def at_moment(moment):
    """In a step: before its effect, or between the effect and the record."""
    return lambda passed: die() if passed == moment else None


def killed_at_every_commit(kind, place, landed, act=Journey.go, fewest=None):
    """A run for each commit there is: its process dies there. Until one lives to the end."""
    journeys = [kind(place, 1)]
    while journeys[-1].child(dying(len(journeys), landed), act=act) == -signal.SIGKILL:
        journeys.append(kind(place, len(journeys) + 1))
    assert len(journeys) > (fewest or FEWEST[kind])
    return journeys


def recovered(app, journey):
    """Another process goes on."""
    ended = journey.go(app)
    journey.check_world(app, ended)
    return ended


@LANDED
def test_a_purchase_killed_at_every_commit_comes_to_its_end(place, landed):
    journeys = killed_at_every_commit(Purchase, place, landed)
    pass_time(place, LEASE + 1)
    with place.app() as app:
        parked = [journey for journey in journeys if recovered(app, journey) == "in review"]
        assert len(parked) == 1  # the intent had landed, or the completion had not
        assert parked[0].settle(app) == RECEIPT
        parked[0].check_world(app, RECEIPT)


@LANDED
def test_a_return_killed_at_every_commit_is_undone_once(place, landed):
    journeys = killed_at_every_commit(Return, place, landed)
    pass_time(place, LEASE + 1)
    with place.app() as app:
        ends = [recovered(app, journey) for journey in journeys]
    assert ends.count("in review") == 2  # announced, and recalled


@KIND
def test_killed_before_the_effect_and_between_effect_and_record(place, kind):
    journeys = {moment: kind(place, order) for order, moment in enumerate(MOMENTS[kind])}
    for moment, journey in journeys.items():
        assert journey.child(hook=at_moment(moment)) == -signal.SIGKILL
    pass_time(place, LEASE + 1)
    with place.app() as app:
        ends = {moment: recovered(app, journey) for moment, journey in journeys.items()}
    never = {"mail", "announce", "recall"}
    assert {moment for moment, ended in ends.items() if ended == "in review"} == {
        moment for moment in journeys if moment.split()[1] in never
    }


def work(journey, app, hook=nothing):
    """It is started and left to a worker, which ends when it finds nothing more to do."""
    journey.declare(app, hook).start(journey.order)
    assert app.worker(concurrency=2).run(until_idle=True) == 0


def start_all(journeys, app):
    """A start that was made before is the same one."""
    for journey in journeys:
        journey.declare(app, nothing).start(journey.order)


@pytest.mark.slow
@LANDED
def test_a_worker_killed_at_every_commit_is_followed_by_one_that_finishes(place, landed):
    journeys = killed_at_every_commit(Purchase, place, landed, work, fewest=6)
    with place.app() as app:
        for _ in range(3):  # what it left; after the timer; after the approval
            pass_time(place, LEASE + 1)
            start_all(journeys, app)
            assert app.worker().run(until_idle=True) == 0
            for journey in journeys:
                journey.answer(app)
        assert app.worker().run(until_idle=True) == 0
        states = [app.attach(flow="purchase", key=journey.key).state for journey in journeys]
        assert sorted(states) == ["done"] * (len(journeys) - 1) + ["review"]
        for journey in journeys:
            journey.check_world(app, journey.go(app))


@pytest.mark.slow
def test_killed_again_and_again_in_the_recovery(place):
    """Wherever the first one died, the next ones find a run that was left behind more than once."""
    journeys = {(first, landed): Purchase(place, 2 * first + landed) for first in (2, 5, 8) for landed in (False, True)}
    for (first, landed), journey in journeys.items():
        assert journey.child(dying(first, landed)) == -signal.SIGKILL
    for last in (False, True):
        pass_time(place, LEASE + 1)
        for (first, landed), journey in journeys.items():
            again = 1 + (first + landed) % 3
            assert journey.child(dying(again, last)) in (-signal.SIGKILL, 0)  # 0: it is in review
    pass_time(place, LEASE + 1)
    with place.app() as app:
        for journey in journeys.values():
            recovered(app, journey)


@pytest.mark.parametrize("moment", ["after mail", "before mail"])
def test_control_without_the_intent_the_mail_goes_out_again_blindly(place, monkeypatch, moment):
    """The protection taken away, in this process and those it forks: the fault must show."""
    from twiceproof.effects import repeat

    monkeypatch.setattr(repeat.Declared, "writes_intent", property(lambda self: False))
    journey = Purchase(place, 1)
    assert journey.child(hook=at_moment(moment)) == -signal.SIGKILL
    pass_time(place, LEASE + 1)
    with place.app() as app:
        assert journey.go(app) == RECEIPT
    assert journey.effects().count("mail") == (2 if moment == "after mail" else 1)
