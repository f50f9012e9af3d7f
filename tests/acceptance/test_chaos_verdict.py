"""The judge of the storm: what it lets pass, and what it does not. Each pair differs in one thing seen."""

from __future__ import annotations

import pytest

from tests.faults.chaos.traces import Run, Seen, Traces
from tests.faults.chaos.world import (
    ANSWER_LOST,
    DATABASE_KILLED,
    KILLED_AFTER,
    KILLED_BEFORE,
    UNEXPLAINED,
    cause_of,
    cut_off,
    judge,
)

ONE, OTHER = "worker 1", "worker 2"


@pytest.fixture
def done():
    """A run that went well: each step took effect once, and its receipts are remembered."""
    traces = Traces()
    traces.runs[0] = Run("done", [1, 2, 3, 4])
    for receipt, kind in enumerate(("safe", "keyed", "check", "transaction", "never")):
        traces.done[kind, 0].append(Seen(receipt, ONE, receipt))
    return traces


@pytest.fixture
def parked(done):
    """A request of the never step at 5, by one worker; at 9 another came, and left it to a person."""
    done.runs[0] = Run("review")
    done.visits[0] = [Seen(1, ONE), Seen(9, OTHER)]
    done.begun["never", 0].append(Seen(5, ONE))
    return done


@pytest.fixture
def unsent(parked):
    """The same, and nobody saw a request."""
    parked.begun.clear()
    del parked.done["never", 0]
    return parked


def test_one_of_each_is_as_it_should_be(done):
    assert judge(done, 1).violations == []


@pytest.mark.parametrize("kind", ["keyed", "check", "transaction", "never"])
def test_a_second_effect_is_a_violation(done, kind):
    done.done[kind, 0].append(Seen(6, OTHER, 6))
    verdict = judge(done, 1)
    assert verdict.violations == [f"order 0 is done, and its {kind} step took effect 2 times"]
    assert verdict.twice == {kind: 1}


def test_a_safe_step_may_happen_again(done):
    done.done["safe", 0].append(Seen(6, OTHER, 6))
    assert judge(done, 1).violations == []


@pytest.mark.parametrize("kind", ["safe", "keyed", "check", "transaction", "never"])
def test_an_effect_that_is_missing_is_a_violation(done, kind):
    del done.done[kind, 0]
    assert judge(done, 1).violations


def test_a_receipt_that_the_world_never_gave_is_a_violation(done):
    done.runs[0] = Run("done", [1, 2, 3, 5])
    assert judge(done, 1).violations == ["order 0 remembers [1, 2, 3, 5], and the world gave [[1], [2], [3], [4]]"]


@pytest.mark.parametrize("state", ["held", "queued", "waiting"])
def test_a_run_that_never_ended_is_a_violation(done, state):
    done.runs[1] = Run(state)
    assert judge(done, 2).violations == [f"order 1 never ended: it is {state}"]


def test_a_run_that_nobody_knows_is_a_violation(done):
    assert judge(done, 2).violations == ["order 1 never ended: it is unknown"]


def test_a_review_that_nothing_explains_is_a_violation(parked):
    assert judge(parked, 1).violations == [f"order 0 is in review, and {UNEXPLAINED}"]


@pytest.mark.parametrize(("at", "cause"), [(4.9, KILLED_AFTER), (5.1, KILLED_AFTER), (9.1, UNEXPLAINED)])
def test_a_kill_explains_a_review_if_it_came_before_the_next_visit(parked, at, cause):
    """A request may be read a moment after its sender was killed: it lay in the socket."""
    parked.killed[ONE] = at
    assert cause_of(parked, 0) == cause


def test_the_kill_of_another_worker_explains_nothing(parked):
    parked.killed[OTHER] = 6.0
    assert cause_of(parked, 0) == UNEXPLAINED


@pytest.mark.parametrize(("at", "cause"), [(0.9, UNEXPLAINED), (5.1, DATABASE_KILLED), (9.1, UNEXPLAINED)])
def test_a_killed_database_explains_a_review_between_two_visits_of_its_worker(parked, at, cause):
    parked.database_killed.append(at)
    assert cause_of(parked, 0) == cause


def test_a_worker_cut_off_from_the_database_may_be_the_one_that_comes_again(parked):
    parked.visits[0] = [Seen(1, ONE), Seen(9, ONE)]
    parked.database_killed.append(5.1)
    assert cause_of(parked, 0) == DATABASE_KILLED


def test_a_lost_answer_explains_a_review(parked):
    parked.lost["never", 0].append(Seen(5, ONE))
    assert cause_of(parked, 0) == ANSWER_LOST


def test_a_lost_answer_of_another_step_explains_nothing(parked):
    parked.lost["keyed", 0].append(Seen(5, ONE))
    assert cause_of(parked, 0) == UNEXPLAINED


@pytest.mark.parametrize(("at", "cause"), [(4.0, KILLED_BEFORE), (9.1, UNEXPLAINED)])
def test_without_a_request_only_a_kill_during_the_visit_explains_a_review(unsent, at, cause):
    unsent.killed[ONE] = at
    assert cause_of(unsent, 0) == cause


@pytest.mark.parametrize(("at", "cause"), [(4.0, DATABASE_KILLED), (9.1, UNEXPLAINED)])
def test_without_a_request_a_kill_of_the_database_during_the_visit_explains_it_too(unsent, at, cause):
    unsent.database_killed.append(at)
    assert cause_of(unsent, 0) == cause


def test_whoever_left_it_to_a_person_may_die_later_and_that_explains_nothing(unsent):
    unsent.killed[OTHER] = 9.5
    assert cause_of(unsent, 0) == UNEXPLAINED


def test_kills_between_effect_and_record_are_counted_by_what_came_afterwards(done):
    done.known["keyed", 0].append(Seen(8, OTHER))
    done.asked["check", 0].append(Seen(8, OTHER, found=2))
    assert cut_off(done, {}) == {"keyed": 0, "check": 0, "never": 0}
    done.killed[ONE] = 4.5
    assert cut_off(done, {0: KILLED_AFTER}) == {"keyed": 1, "check": 1, "never": 1}
