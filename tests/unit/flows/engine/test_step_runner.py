"""Replay by name: finished steps are answered from the ledger, and a flow that changed under its run stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from twiceproof import App, Misuse, NeedsReview, NotDone, PayloadMismatch, Retry, StepFailed, Waiting

ONCE = Retry(attempts=1)


def three(stage: Stage, app: App, names: str = "abc", **options: Any) -> Any:
    """A flow of safe steps with these names."""
    steps = {name: _step(stage, app, name) for name in names}

    @app.flow(key="order:{order}", name="sync", **options)
    def sync(order: int) -> str:
        return "".join(steps[name](order) for name in names)

    return sync


def _step(stage: Stage, app: App, name: str) -> Callable[[int], str]:
    @app.step(repeat="safe", name=name)
    def work(order: int) -> str:
        stage.do(name)
        return name

    return work


def die_after(stage: Stage, names: str, commits: int) -> None:
    """A run of these steps that was killed when so many commits had landed."""
    with pytest.raises(Died):
        three(stage, stage.process(commits + 1), names)(1)
    stage.lapse()


def test_a_second_call_is_answered_without_doing_anything(stage: Stage) -> None:
    flow = three(stage, stage.process())
    assert flow(1) == flow(1) == "abc"
    assert stage.effects == {"a": 1, "b": 1, "c": 1}


def test_another_payload_under_the_same_key_is_refused(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, int]) -> int:
        return order["total"]

    assert sync({"id": 1, "total": 5}) == 5
    with pytest.raises(PayloadMismatch):
        sync({"id": 1, "total": 6})
    with pytest.raises(PayloadMismatch):
        sync.start({"id": 1, "total": 6})


def test_a_rerun_skips_finished_steps(stage: Stage) -> None:
    die_after(stage, "abc", 3)
    assert three(stage, stage.process())(1) == "abc"
    assert stage.effects == {"a": 1, "b": 1, "c": 2}  # c was done and could not be recorded; it is safe


def test_n_steps_cost_one_commit_more_than_steps(stage: Stage) -> None:
    app = stage.process()
    three(stage, app)(1)
    assert app.engine.commits == 4  # type: ignore[attr-defined]


def test_a_step_added_after_the_frontier_does_not_disturb_a_run(stage: Stage) -> None:
    die_after(stage, "abc", 2)  # a is recorded
    assert three(stage, stage.process(), "abxc")(1) == "abxc"


def test_a_step_removed_after_the_frontier_does_not_disturb_a_run(stage: Stage) -> None:
    die_after(stage, "abc", 2)
    assert three(stage, stage.process(), "ac")(1) == "ac"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("axbc", "x is new before b"),
        ("xbc", "x is new before a, b"),
        ("aBc", "B is new before b"),
        ("ac", "c is new before b"),
    ],
    ids=["added", "first renamed", "renamed", "removed"],
)
def test_a_change_before_the_frontier_stops_in_review(stage: Stage, names: str, said: str) -> None:
    die_after(stage, "abc", 3)  # a and b are recorded
    before = dict(stage.effects)
    with pytest.raises(NeedsReview, match=said):
        three(stage, stage.process(), names)(1)
    assert stage.effects == before


def charging(stage: Stage, app: App, names: str) -> Any:
    """The same, and a charge at the end that is refused the first time and tried again an hour later."""
    steps = [_step(stage, app, name) for name in names]

    @app.step(repeat="safe", retry=Retry(attempts=2, first="1h", most="1h"))
    def charge(order: int) -> str:
        stage.do("charge")
        if stage.effects["charge"] == 1:
            raise NotDone("not now")
        return "!"

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return "".join(step(order) for step in (*steps, charge))

    return sync


@pytest.mark.parametrize(("names", "gone"), [("a", "b"), ("ac", "b"), ("", "a, b")])
def test_what_was_begun_is_not_tried_again_where_the_flow_before_it_changed(
    stage: Stage, names: str, gone: str
) -> None:
    with pytest.raises(Waiting):
        charging(stage, stage.process(), "ab")(1)
    stage.clock.advance(3_601)
    with pytest.raises(NeedsReview, match=f"(before charge it no longer calls|c is new before) {gone}"):
        charging(stage, stage.process(), names)(1)
    assert stage.effects["charge"] == 1


def test_what_was_begun_is_tried_again_where_nothing_changed(stage: Stage) -> None:
    with pytest.raises(Waiting):
        charging(stage, stage.process(), "ab")(1)
    stage.clock.advance(3_601)
    assert charging(stage, stage.process(), "ab")(1) == "ab!"


def test_a_caught_failure_is_tried_again_and_what_came_after_it_is_not_missed(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe", retry=ONCE)
    def first(order: int) -> None:
        raise NotDone("no")

    @app.step(repeat="safe", retry=ONCE)
    def last(order: int) -> None:
        stage.do("last")
        if stage.effects["last"] == 1:
            raise NotDone("no")

    other = _step(stage, app, "other")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        try:
            first(order)
        except StepFailed:
            other(order)
        last(order)

    with pytest.raises(NotDone):
        sync(1)
    sync.retry(1)
    assert stage.effects == {"other": 1, "last": 2}


def test_a_flow_that_ends_without_a_step_that_is_done_stops_in_review(stage: Stage) -> None:
    die_after(stage, "abc", 3)
    with pytest.raises(NeedsReview, match="no longer calls b"):
        three(stage, stage.process(), "a")(1)


@pytest.mark.parametrize(
    ("first", "second"),
    [(5, 6), ("5 EUR", "6 EUR"), ("5\N{NO-BREAK SPACE}EUR", "6\N{NO-BREAK SPACE}EUR"), ("\u2028", "a=b")],
)
def test_other_arguments_stop_in_review_and_are_named(stage: Stage, first: Any, second: Any) -> None:
    def flow(app: App, total: Any) -> Any:
        @app.step(repeat="safe")
        def charge(order: int, total: Any) -> None:
            stage.do("charge")

        @app.step(repeat="safe")
        def mail(order: int) -> None:
            stage.do("mail")

        @app.flow(key="order:{order}")
        def sync(order: int) -> None:
            charge(order, total)
            mail(order)

        return sync

    with pytest.raises(Died):
        flow(stage.process(3), first)(1)
    stage.lapse()
    with pytest.raises(NeedsReview, match="charge was called with another total"):
        flow(stage.process(), second)(1)
    assert stage.effects["charge"] == 1


def test_a_step_called_again_is_numbered_and_found_again(stage: Stage) -> None:
    app = stage.process()
    step = _step(stage, app, "a")

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        step(order)
        step(order)

    sync(1)
    assert list(stage.entries("sync", "order:1")) == ["a", "a#2"]
    assert stage.effects == {"a": 2}


def test_in_a_loop_each_item_has_an_id_of_its_own(stage: Stage) -> None:
    def flow(app: App, skus: str) -> Any:
        @app.step(repeat="safe", id="{sku}")
        def ship(sku: str) -> str:
            stage.do(sku)
            return sku

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> list[str]:
            return [ship(sku) for sku in skus]

        return sync

    with pytest.raises(Died):
        flow(stage.process(3), "xyz")(1)
    stage.lapse()
    assert flow(stage.process(), "yxz")(1) == ["y", "x", "z"]  # in another order: found by id
    assert stage.effects["x"] == 1


@dataclass
class Invoice:
    id: str
    total: Decimal
    due: datetime


def test_results_come_back_with_their_type_the_first_time_too(stage: Stage) -> None:
    seen: list[Any] = []

    def flow(app: App) -> Any:
        @app.step(repeat="safe")
        def invoice(order: int) -> Invoice:
            return Invoice("inv_1", Decimal("9.90"), datetime(2026, 1, 2))

        @app.step(repeat="safe")
        def plain(order: int) -> tuple[int, int]:
            return (1, 2)

        @app.flow(key="order:{order}")
        def sync(order: int) -> Invoice:
            made = invoice(order)
            seen.append((made, plain(order)))
            return made

        return sync

    with pytest.raises(Died):
        flow(stage.process(3))(1)
    stage.lapse()
    assert flow(stage.process())(1) == Invoice("inv_1", Decimal("9.90"), datetime(2026, 1, 2))
    assert seen[0] == seen[1]


def test_a_step_that_failed_for_good_says_so_again(stage: Stage) -> None:
    """The flow branches on it: a replay must branch the same way."""

    def flow(app: App) -> Any:
        @app.step(repeat="safe", retry=ONCE)
        def first(order: int) -> None:
            stage.do("first")
            raise NotDone("no")

        second = _step(stage, app, "second")

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> str:
            try:
                first(order)
            except StepFailed as failed:
                assert failed.step == "first"
                return second(order)
            return "first"

        return sync

    with pytest.raises(Died):
        flow(stage.process(3))(1)
    stage.lapse()
    assert flow(stage.process())(1) == "second"
    assert stage.effects["first"] == 1


def test_times_ids_and_numbers_are_the_same_in_a_replay(stage: Stage) -> None:
    drawn: list[Any] = []

    def flow(app: App) -> Any:
        step = _step(stage, app, "a")

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> None:
            drawn.append((app.now(), app.uuid(), app.random(), app.now()))
            step(order)

        return sync

    with pytest.raises(Died):
        flow(stage.process(3))(1)
    stage.lapse()
    flow(stage.process())(1)
    assert drawn[0] == drawn[1]
    assert drawn[0][0] <= drawn[0][3]


def test_a_step_that_is_called_outside_of_a_flow_is_told_why_it_has_no_effect_key(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="keyed")
    def pay() -> str:
        return app.effect_key()

    with pytest.raises(Misuse, match="call the step from a flow"):
        pay()


def test_the_effect_key_is_the_same_for_every_attempt_and_after_an_edit(stage: Stage) -> None:
    keys: list[str] = []

    def flow(app: App, names: str) -> Any:
        @app.step(repeat="keyed", name="pay")
        def pay(order: int) -> None:
            keys.append(app.effect_key())

        others = {name: _step(stage, app, name) for name in names}

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> None:
            pay(order)
            for name in names:
                others[name](order)

        return sync

    with pytest.raises(Died):
        flow(stage.process(2), "")(1)
    stage.lapse()
    flow(stage.process(), "xy")(1)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    flow(stage.process(), "")(2)
    assert len(set(keys)) == 2  # another order, another key


def test_a_step_called_outside_a_flow_runs_plainly(stage: Stage) -> None:
    app = stage.process()
    assert _step(stage, app, "a")(1) == "a"
    assert app.engine.commits == 0  # type: ignore[attr-defined]


def test_what_a_step_calls_is_part_of_that_step(stage: Stage) -> None:
    app = stage.process()
    inner = _step(stage, app, "inner")

    @app.step(repeat="safe")
    def outer(order: int) -> str:
        return inner(order)

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        return outer(order)

    assert sync(1) == "inner"
    assert list(stage.entries("sync", "order:1")) == ["outer"]


def test_the_effect_key_belongs_to_a_step(stage: Stage) -> None:
    with pytest.raises(Misuse, match=r"inside a function under @app\.step"):
        stage.process().effect_key()


def test_a_step_whose_result_is_too_large_is_told_where_it_could_be_kept(stage: Stage) -> None:
    from twiceproof import ResultTypeWarning

    app = stage.process()

    @app.step(repeat="safe")
    def render() -> str:
        return "x" * 9_000_000

    @app.flow(key="large:{n}")
    def large(n: int) -> int:
        return len(render())

    told = r"\(too large to keep\); return less, .* resources=…"
    with pytest.warns(ResultTypeWarning), pytest.raises(NeedsReview, match=told):
        large(1)


def test_a_result_without_a_json_form_is_refused_the_first_time_and_again(stage: Stage) -> None:
    from twiceproof import ResultTypeWarning

    app = stage.process()

    @app.step(repeat="safe")
    def odd(order: int) -> Any:
        return object()

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        odd(order)

    with pytest.warns(ResultTypeWarning), pytest.raises(NeedsReview, match="odd: it was done, but its result"):
        sync(1)
    with pytest.raises(NeedsReview, match="odd: it was done, but its result"):
        sync(1)


def test_a_large_result_comes_back(stage: Stage) -> None:
    def flow(app: App) -> Any:
        @app.step(repeat="safe")
        def big(order: int) -> str:
            stage.do("big")
            return "x" * 200_000

        step = _step(stage, app, "a")

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> int:
            size = len(big(order))
            step(order)
            return size

        return sync

    with pytest.raises(Died):
        flow(stage.process(3))(1)
    stage.lapse()
    assert flow(stage.process())(1) == 200_000
    assert stage.effects["big"] == 1


def test_a_step_is_recorded_on_a_thread_that_has_its_run_and_runs_plainly_elsewhere(
    stage: Stage,
) -> None:
    """As the pages say: `twiceproof check` warns of the second."""
    app = stage.process()

    @app.step(repeat="never")
    def mail(order: int) -> int:
        stage.do("mail")
        return order

    @app.flow(key="order:{order}", name="sync")
    async def sync(order: int) -> int:
        return await asyncio.to_thread(mail, order)

    @app.flow(key="order:{order}", name="sync_plainly")
    async def sync_plainly(order: int) -> int:
        return await asyncio.get_running_loop().run_in_executor(None, mail, order)

    assert asyncio.run(sync(1)) == asyncio.run(sync_plainly(1)) == 1
    assert [step.name for step in app.history("sync/order:1").steps] == ["mail"]
    assert app.history("sync_plainly/order:1").steps == []
