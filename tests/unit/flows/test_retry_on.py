"""`Retry(on=…)` in a run: the failure just met decides about the next start, in this process and in the next one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.waits import work
from twiceproof import Absent, App, NeedsReview, NotDone, Retry, StepFailed, Waiting, check


class RateLimited(NotDone): ...


class Slow(NotDone): ...


HOURLY = Retry(attempts=6, first="1h", most="1h", within="2d")
POLICY = Retry(attempts=2, first="1m", within="10m", on={RateLimited: HOURLY, Slow: Retry(attempts=4, first="1m")})


def paying(stage: Stage, style: Style, app: App, errors: list[BaseException], repeat: Any = "safe") -> Any:
    """A flow of one step that raises the errors in turn. It returns how the step failed, or what it returned."""
    app.runtime.roll = lambda: 1.0

    def pay(order: int) -> str:
        stage.do("pay")
        if errors:
            raise errors.pop(0)
        return "paid"

    step = style.step(app, pay, repeat=repeat, retry=POLICY)

    def steps(order: int) -> Any:
        try:
            return (yield step(order))
        except StepFailed as failed:
            return failed.fault.type

    return style.flow(app, steps)


def waits(flow: Any, stage: Stage) -> float:
    """Call it, see it wait for its next start, and return for how long."""
    with pytest.raises(Waiting, match="pay will be tried again"):
        flow(1)
    due = stage.record("sync", "order:1").due_at
    assert due is not None
    return due - stage.clock.wall


def end(stage: Stage, style: Style, errors: list[BaseException], *, every: float, repeat: Any = "safe") -> Any:
    """Each start is made by another process."""
    for _ in range(60):
        try:
            return paying(stage, style, stage.process(), errors, repeat)(1)
        except Waiting:
            stage.clock.advance(every)
    raise AssertionError("it never ended")


def test_the_failure_just_met_decides_how_long_the_next_start_is_waited_for(stage: Stage, style: Style) -> None:
    flow = paying(stage, style, stage.process(), [RateLimited("later"), Slow("slow")])
    assert waits(flow, stage) == pytest.approx(3_600)
    stage.clock.advance(3_600)
    assert waits(flow, stage) == pytest.approx(120)  # the second start: a minute, doubled
    stage.clock.advance(120)
    assert flow(1) == "paid"


@pytest.mark.parametrize("repeat", ["safe", "keyed", "never"])
def test_a_class_with_a_policy_is_started_as_often_as_that_allows(stage: Stage, style: Style, repeat: str) -> None:
    assert end(stage, style, [RateLimited("no") for _ in range(9)], every=3_600, repeat=repeat) == "RateLimited"
    assert stage.effects == {"pay": 6}


def test_an_error_without_a_policy_of_its_own_keeps_to_the_outer_one(stage: Stage, style: Style) -> None:
    assert end(stage, style, [NotDone("no") for _ in range(9)], every=60) == "NotDone"
    assert stage.effects == {"pay": 2}


def test_all_starts_count_whatever_they_failed_with(stage: Stage, style: Style) -> None:
    errors: list[BaseException] = [RateLimited("a"), RateLimited("b"), NotDone("c")]
    assert end(stage, style, errors, every=3_600) == "NotDone"
    assert stage.effects == {"pay": 3}


def test_its_time_counts_from_the_first_start_of_all(stage: Stage, style: Style) -> None:
    """An hour after the first start, ten minutes are over."""
    errors: list[BaseException] = [RateLimited("a"), NotDone("b")]
    assert end(stage, style, errors, every=3_600) == "NotDone"
    assert stage.effects == {"pay": 2}


def test_a_step_that_came_through_forgets_the_policy(stage: Stage, style: Style) -> None:
    assert end(stage, style, [RateLimited("a")], every=3_600) == "paid"
    assert stage.entries("sync", "order:1")["pay"].note.policy == ""


@pytest.mark.parametrize("failures", [3, 5])
def test_a_start_that_was_killed_is_judged_by_the_failure_before_it(stage: Stage, style: Style, failures: int) -> None:
    """A third or sixth start is killed: more than the outer policy allows, and within that of the last failure."""
    for _ in range(failures):
        with pytest.raises(Waiting):
            paying(stage, style, stage.process(), [RateLimited("no")])(1)
        stage.clock.advance(3_600)
    with pytest.raises(Died):
        paying(stage, style, stage.process(2), [])(1)
    stage.lapse()
    flow = paying(stage, style, stage.process(), [])
    if failures == 3:
        assert flow(1) == "paid"
    else:
        with pytest.raises(NeedsReview, match="started 6 times and never came to an end"):
            flow(1)


def test_a_second_start_that_was_killed_is_judged_so_too(stage: Stage, style: Style) -> None:
    """The first one left the failure on record, the second one its own start."""
    with pytest.raises(Waiting):
        paying(stage, style, stage.process(), [RateLimited("no")])(1)
    stage.clock.advance(3_600)
    for commit in (2, 3):
        with pytest.raises(Died):
            paying(stage, style, stage.process(commit), [])(1)
        stage.lapse()
    assert stage.entries("sync", "order:1")["pay"].state == "started"
    assert paying(stage, style, stage.process(), [])(1) == "paid"
    assert stage.effects == {"pay": 4}


def test_a_check_step_that_is_absent_is_started_by_the_policy_of_its_failure(stage: Stage, style: Style) -> None:
    class Vague(Exception): ...

    app = stage.process()
    app.runtime.roll = lambda: 1.0
    retry = Retry(attempts=1, on={Vague: Retry(attempts=3, first="10s")})

    def pay(order: int) -> str:
        stage.do("pay")
        raise Vague

    step = style.step(app, pay, repeat=check(lambda order: Absent, settling=0), retry=retry)

    def steps(order: int) -> Any:
        return (yield step(order))

    with pytest.raises(Waiting):
        style.flow(app, steps)(1)
    for _ in range(10):
        stage.clock.advance(60)
        work(app)
    assert stage.effects == {"pay": 3}
