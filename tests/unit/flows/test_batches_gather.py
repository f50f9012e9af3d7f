"""`app.gather`: calls beside each other, each to its own end, and found again by a replay."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.unit.flows.resuming import resume
from tests.unit.flows.stage import Died, Stage
from twiceproof import App, Misuse, NeedsReview, NotDone, Retry, StepFailed, Waiting

ONCE = Retry(attempts=1)


def steps_of(stage: Stage, app: App, **options: Any) -> tuple[Any, Any]:
    @app.step(repeat="safe", **options)
    def left(order: int) -> str:
        stage.do("left")
        return f"left {order}"

    @app.step(repeat="safe", **options)
    def right(order: int) -> str:
        stage.do("right")
        return f"right {order}"

    return left, right


# -- results ---------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_calls(stage: Stage) -> None:
    app = stage.process()
    left, right = steps_of(stage, app)

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return app.gather(lambda: left(order), lambda: right(order))

    assert sync(1) == ["left 1", "right 1"]
    assert sync(1) == ["left 1", "right 1"]
    assert stage.effects == {"left": 1, "right": 1}


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_where_no_more_threads_are_to_be_had_those_that_are_do_all_the_work(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    app, left = stage.process(), [threads]
    start = threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "twiceproof-branch":
            if not left[0]:
                raise RuntimeError("can't start new thread")
            left[0] -= 1
        start(thread)

    @app.step(repeat="safe", id="{number}")
    def count(number: int) -> int:
        stage.do("count")
        return number

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[int]:
        return app.gather(*(lambda number=number: count(number) for number in range(5)))

    monkeypatch.setattr(threading.Thread, "start", scarce)
    assert sync(1) == [0, 1, 2, 3, 4]
    assert stage.effects == {"count": 5}


def test_awaited_results_come_in_the_order_of_the_calls(stage: Stage) -> None:
    app = stage.process()
    gate = asyncio.Event()

    @app.step(repeat="safe")
    async def slow(order: int) -> str:
        await gate.wait()
        return "slow"

    @app.step(repeat="safe")
    async def quick(order: int) -> str:
        gate.set()
        return "quick"

    @app.flow(key="order:{order}")
    async def sync(order: int) -> list[str]:
        return await app.gather(slow(order), quick(order))

    assert asyncio.run(sync(1)) == ["slow", "quick"]


def test_blocking_calls_really_run_at_once(stage: Stage) -> None:
    app = stage.process()
    both = threading.Barrier(2, timeout=10)

    @app.step(repeat="safe", id="{side}")
    def meet(side: str) -> str:
        both.wait()
        return side

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return app.gather(lambda: meet("a"), lambda: meet("b"))

    assert sync(1) == ["a", "b"]


def test_a_limit_of_one_runs_them_one_after_another(stage: Stage) -> None:
    app = stage.process()
    seen: list[str] = []

    @app.step(repeat="safe", id="{side}")
    def note(side: str) -> None:
        seen.append(threading.current_thread().name + side)

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        app.gather(*[lambda side=side: note(side) for side in "abc"], limit=1)

    sync(1)
    here = threading.current_thread().name
    assert seen == [here + side for side in "abc"]


def test_nothing_to_gather_is_an_empty_list(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return app.gather()

    assert sync(1) == []


# -- what is refused -------------------------------------------------------------------------------


def test_a_value_in_place_of_a_function_is_refused(stage: Stage) -> None:
    app = stage.process()
    left, right = steps_of(stage, app)

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return app.gather(left(order), lambda: right(order))

    with pytest.raises(Misuse, match="lambda"):
        sync(1)
    assert stage.effects["right"] == 0


def test_a_task_that_has_begun_is_refused(stage: Stage) -> None:
    app = stage.process()

    async def nothing() -> None: ...

    @app.flow(key="order:{order}")
    async def sync(order: int) -> None:
        task = asyncio.create_task(nothing())
        try:
            await app.gather(nothing(), task)
        finally:
            await task

    with pytest.raises(Misuse, match="not begun"):
        asyncio.run(sync(1))


def test_the_same_step_in_two_branches_needs_an_id(stage: Stage) -> None:
    """Even if they happen not to overlap: which is the second would be chance."""
    app = stage.process()
    left, _ = steps_of(stage, app)

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return app.gather(lambda: left(1), lambda: left(2), limit=1)

    with pytest.raises(Misuse, match="id="):
        sync(1)


def test_the_same_step_in_one_branch_and_in_two_gatherings_is_numbered(stage: Stage) -> None:
    app = stage.process()
    left, right = steps_of(stage, app)

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[Any]:
        first = app.gather(lambda: [left(1), left(2)], lambda: right(1))
        return [*first, *app.gather(lambda: left(3))]

    assert sync(1) == [["left 1", "left 2"], "right 1", "left 3"]
    assert set(stage.entries("sync", "order:1")) == {"left", "left#2", "left#3", "right"}


def test_outside_a_flow_there_is_nothing_to_gather_in(stage: Stage) -> None:
    with pytest.raises(Misuse, match="no flow"):
        stage.process().gather(lambda: 1)


# -- stopping and failing --------------------------------------------------------------------------


def test_a_failure_waits_for_the_others(stage: Stage) -> None:
    app = stage.process()
    failing = threading.Event()

    @app.step(retry=ONCE)
    def refuse(order: int) -> None:
        failing.set()
        raise NotDone("no")

    @app.step(repeat="safe")
    def work(order: int) -> str:
        failing.wait(10)
        stage.do("work")
        return "done"

    @app.flow(key="order:{order}")
    def sync(order: int) -> Any:
        try:
            return app.gather(lambda: refuse(order), lambda: work(order))
        except StepFailed as error:
            return [error.data["step"], stage.effects["work"]]

    assert sync(1) == ["refuse", 1]


def test_a_branch_that_waits_does_not_stop_the_other(stage: Stage) -> None:
    """The second step of the other branch is not put off until the timer has run out."""
    app = stage.process()
    left, right = steps_of(stage, app)

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[Any]:
        return app.gather(lambda: app.sleep("2d"), lambda: [left(order), right(order)])

    with pytest.raises(Waiting):
        sync(1)
    assert stage.effects == {"left": 1, "right": 1}
    stage.clock.advance(2 * 86_400)
    assert resume(app) == 1
    assert sync(1) == [None, ["left 1", "right 1"]]
    assert stage.effects == {"left": 1, "right": 1}


def test_of_two_timers_the_earlier_wakes_the_run(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int) -> int:
        app.gather(lambda: app.sleep("3d"), lambda: app.sleep("1d"))
        return 7

    with pytest.raises(Waiting) as first:
        sync(1)
    assert first.value.data["until"] == pytest.approx(stage.clock.now() + 86_400)
    stage.clock.advance(86_400)
    resume(app)
    assert stage.record("sync", "order:1").due_at == pytest.approx(stage.clock.now() + 2 * 86_400)
    stage.clock.advance(2 * 86_400)
    resume(app)
    assert sync(1) == 7


def test_a_wait_counts_for_more_than_a_failure_and_the_failure_is_met_again(stage: Stage) -> None:
    app = stage.process()

    @app.step(retry=ONCE)
    def refuse(order: int) -> None:
        stage.do("refuse")
        raise NotDone("no")

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        try:
            app.gather(lambda: refuse(order), lambda: app.sleep("1d"))
        except StepFailed:
            return "went another way"
        return "never here"

    with pytest.raises(Waiting):
        sync(1)
    stage.clock.advance(86_400)
    resume(app)
    assert sync(1) == "went another way"
    assert stage.effects["refuse"] == 1


def test_an_unknown_outcome_is_shown_at_once_beside_a_long_wait(stage: Stage) -> None:
    app = stage.process()

    @app.step
    def charge(order: int) -> None:
        raise TimeoutError("no answer")

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        app.gather(lambda: charge(order), lambda: app.sleep("30d"))

    with pytest.raises(NeedsReview, match="charge"):
        sync(1)


def test_an_awaited_branch_that_waits_does_not_stop_the_other(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    async def work(order: int) -> str:
        stage.do("work")
        return "done"

    @app.flow(key="order:{order}")
    async def sync(order: int) -> list[Any]:
        return await app.gather(app.sleep("1d"), work(order))

    with pytest.raises(Waiting):
        asyncio.run(sync(1))
    assert stage.effects["work"] == 1


def test_a_cancelled_gather_waits_until_its_branches_have_ended(stage: Stage) -> None:
    app = stage.process()
    ended: list[str] = []

    async def main() -> None:
        begun = asyncio.Event()

        @app.step(repeat="safe")
        async def long(order: int) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append("long")

        @app.step(repeat="safe")
        async def later(order: int) -> None:
            ended.append("later")

        @app.flow(key="order:{order}")
        async def sync(order: int) -> None:
            await app.gather(long(order), later(order), limit=1)

        task = asyncio.create_task(sync(1))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == ["long"]
    assert stage.record("sync", "order:1").state == "queued"


def test_a_swallowed_wait_in_a_branch_is_found(stage: Stage) -> None:
    app = stage.process()
    left, _ = steps_of(stage, app)

    def swallow() -> None:
        try:
            app.sleep("1d")
        except BaseException:  # noqa: BLE001 - what users should not do
            left(1)

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        app.gather(swallow, lambda: None)

    with pytest.raises(NeedsReview, match="told to stop"):
        sync(1)
    assert stage.effects["left"] == 0


# -- crashes ---------------------------------------------------------------------------------------


def keyed_pair(stage: Stage, app: App, dies_in: str = "") -> Any:
    @app.step(repeat="keyed", id="{side}")
    def pay(side: str) -> str:
        stage.do(side)
        app.engine.dead = app.engine.dead or side == dies_in  # type: ignore[attr-defined]
        return side

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return app.gather(lambda: pay("a"), lambda: pay("b"), limit=1)

    return sync


def test_the_window_of_a_keyed_step_runs_from_its_start_not_its_neighbours_end(stage: Stage) -> None:
    """Begun 30 hours ago: what the ledger heard of others since then does not make the provider remember."""

    def declare(app: App) -> Any:
        b_began, over = threading.Event(), threading.Event()

        @app.step(repeat="keyed", id="{name}")
        def pay(name: str) -> str:
            stage.do(name)
            if first and name == "a":
                assert b_began.wait(10)
                stage.clock.advance(20 * 3_600)
            if first and name == "b":
                b_began.set()
                assert over.wait(10)
            if first and name == "after a":
                app.engine.dead = True  # type: ignore[attr-defined]
                over.set()
            return name

        @app.flow(key="order:{order}")
        def sync(order: int) -> Any:
            return app.gather(lambda: [pay("a"), pay("after a")], lambda: pay("b"))

        return sync

    first = True
    with pytest.raises(Died):
        declare(stage.process())(1)
    first = False
    stage.clock.advance(10 * 3_600)
    with pytest.raises(NeedsReview, match=r"pay\[b\].*forgets"):
        declare(stage.process())(1)
    assert stage.effects == {"a": 1, "after a": 2, "b": 1}


def test_a_keyed_step_that_never_began_is_not_taken_for_unknown(stage: Stage) -> None:
    """A day later the provider has forgotten the first key, but the second it has never seen."""
    with pytest.raises(Died):
        keyed_pair(stage, stage.process(), dies_in="a")(1)
    stage.clock.advance(60)
    assert keyed_pair(stage, stage.process())(1) == ["a", "b"]
    assert stage.effects == {"a": 2, "b": 1}
    assert stage.entries("sync", "order:1")["pay[b]"].note.starts == 1


def test_a_replay_of_an_unfinished_gathering_is_not_a_changed_flow(stage: Stage) -> None:
    """The branch that is new may be reached before the one that is done."""

    def declare(app: App) -> Any:
        left, right = steps_of(stage, app)

        @app.step(repeat="safe")
        def more(order: int) -> str:
            return "more"

        @app.flow(key="order:{order}")
        def sync(order: int) -> list[Any]:
            wait = app.gather(lambda: [app.sleep("1d"), more(order)], lambda: left(order), limit=1)
            return [*wait, right(order)]

        return sync

    app = stage.process()
    with pytest.raises(Waiting):
        declare(app)(1)
    stage.clock.advance(86_400)
    assert declare(stage.process())(1) == [[None, "more"], "left 1", "right 1"]


def test_a_timer_of_another_branch_that_still_runs_is_not_a_changed_flow(stage: Stage) -> None:
    app = stage.process()
    left, _ = steps_of(stage, app)

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[Any]:
        return app.gather(lambda: [app.sleep("1d"), left(order)], lambda: app.sleep("3d"), limit=1)

    with pytest.raises(Waiting):
        sync(1)
    stage.clock.advance(86_400)
    resume(app)
    assert stage.effects["left"] == 1
    assert stage.record("sync", "order:1").state == "waiting"


def test_cancelling_reaches_every_branch_before_its_next_step(stage: Stage) -> None:
    app = stage.process()
    begun, cancelled = threading.Barrier(3, timeout=10), threading.Event()

    @app.step(repeat="safe", id="{side}", undo=lambda side: stage.do(f"undo {side}"))
    def work(side: str) -> None:
        stage.do(side)
        if not cancelled.is_set():
            begun.wait()
            cancelled.wait(10)

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        app.gather(lambda: [work("a"), work("a2")], lambda: [work("b"), work("b2")])

    def cancel() -> None:
        begun.wait()
        app.attach(flow="sync", key="order:1").cancel("me")
        cancelled.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(Exception, match="cancelled by me"):
        sync(1)
    canceller.join()
    assert stage.effects == {"a": 1, "b": 1, "undo a": 1, "undo b": 1}


def test_a_heartbeat_that_meets_a_cancellation_first_does_not_hide_it(stage: Stage) -> None:
    app = stage.process()
    left, right = steps_of(stage, app)

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        left(order)
        app.attach(flow="sync", key="order:1").cancel("me")
        stage.clock.advance(15)
        app._heartbeat.beat()
        right(order)

    with pytest.raises(Exception, match="cancelled by me"):
        sync(1)
    assert stage.effects == {"left": 1}
    assert stage.record("sync", "order:1").state == "failed"
