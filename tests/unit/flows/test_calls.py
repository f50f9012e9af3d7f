"""Runs that are left to workers: later, many at once, and steps for items with what they need beside them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.flows.stage import Called, Stage, Style
from twiceproof import App, BatchFailed, KeyRefused, Misuse, NeedsReview, NotDone, PayloadMismatch, Retry, Waiting


def work(app: App) -> None:
    app.worker().run(until_idle=True)


def counting(stage: Stage, app: App) -> Any:
    @app.flow(key="order:{order}")
    def sync(order: int, price: int = 1) -> str:
        stage.do(f"sync {order}")
        return f"{order} for {price}"

    return sync


# -- later --------------------------------------------------------------------------------------------


def test_a_run_that_is_started_with_a_delay_begins_when_it_is_over(stage: Stage) -> None:
    app = stage.process()
    handle = counting(stage, app).start(1, delay="10m")
    work(app)
    assert (handle.state, stage.effects) == ("queued", {})
    stage.clock.advance(601)
    work(app)
    assert (handle.state, handle.result()) == ("done", "1 for 1")


def test_many_runs_that_are_started_with_a_delay_begin_when_it_is_over(stage: Stage) -> None:
    app = stage.process()
    handles = counting(stage, app).start_many([(1,), (2,)], delay="10m")
    work(app)
    assert ([handle.state for handle in handles], stage.effects) == (["queued", "queued"], {})
    stage.clock.advance(601)
    work(app)
    assert [handle.state for handle in handles] == ["done", "done"]


def test_a_call_for_it_meanwhile_is_told_to_wait(stage: Stage) -> None:
    app = stage.process()
    sync = counting(stage, app)
    sync.start(1, delay=600)
    with pytest.raises(Waiting):
        sync(1)
    assert stage.effects == {}


def test_a_second_start_is_the_first_ones_whatever_its_delay(stage: Stage) -> None:
    app = stage.process()
    sync = counting(stage, app)
    first = sync.start(1)
    assert sync.start(1, delay="1d").id == first.id
    work(app)
    assert first.result() == "1 for 1"


def test_a_delay_of_an_async_def_flow(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    async def sync(order: int) -> int:
        return order

    async def start() -> Any:
        return await (await sync.start(1, delay="10m")).state

    assert asyncio.run(start()) == "queued"
    work(app)
    assert app.runs()[0].state == "queued"
    stage.clock.advance(601)
    work(app)
    assert app.runs()[0].state == "done"


def test_a_parameter_of_the_flow_that_is_called_delay_is_the_flows(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int, delay: int) -> int:
        return delay

    handle = sync.start(1, delay=7)
    work(app)
    assert handle.result() == 7


@pytest.mark.parametrize("delay", ["soon", -1, None])
def test_a_delay_that_is_none_is_refused_and_starts_nothing(stage: Stage, delay: Any) -> None:
    app = stage.process()
    with pytest.raises(Misuse):
        counting(stage, app).start(1, delay=delay)
    assert app.runs() == []


# -- many ---------------------------------------------------------------------------------------------


def test_many_are_started_at_once_and_each_once(stage: Stage) -> None:
    app = stage.process()
    sync = counting(stage, app)
    sync.start(3)
    handles = sync.start_many([(number,) for number in range(100)])
    assert [handle.key for handle in handles] == [f"order:{number}" for number in range(100)]
    work(app)
    assert [handle.result() for handle in handles] == [f"{number} for 1" for number in range(100)]
    assert set(stage.effects.values()) == {1}
    assert len(sync.start_many([(number,) for number in range(100)])) == 100
    work(app)
    assert set(stage.effects.values()) == {1}


@pytest.mark.parametrize("item", [(1, 5), [1, 5], {"order": 1, "price": 5}], ids=["tuple", "list", "dict"])
def test_an_item_is_spread_over_several_parameters(stage: Stage, item: Any) -> None:
    app = stage.process()
    (handle,) = counting(stage, app).start_many([item])
    work(app)
    assert handle.result() == "1 for 5"


@pytest.mark.parametrize("item", [{"id": 1}, [1, 2], (1, 2)], ids=["dict", "list", "tuple"])
def test_an_item_is_passed_whole_to_a_single_parameter(stage: Stage, item: Any) -> None:
    app = stage.process()

    @app.flow(key="order:1")
    def sync(order: Any) -> Any:
        return order

    (handle,) = sync.start_many([item])
    work(app)
    assert handle.result() == (list(item) if isinstance(item, tuple) else item)


def test_many_of_an_async_def_flow_and_later(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    async def sync(order: int) -> int:
        return order

    async def start() -> list[str]:
        return [await handle.state for handle in await sync.start_many(range(50), delay="1h")]

    assert asyncio.run(start()) == ["queued"] * 50
    stage.clock.advance(3_601)
    work(app)
    assert {run.state for run in app.runs()} == {"done"}


@pytest.mark.parametrize("wrong", [7, (1, 2, 3), {"number": 1}, (None,)], ids=str)
def test_an_item_that_does_not_fit_is_named_before_anything_is_started(stage: Stage, wrong: Any) -> None:
    app = stage.process()
    with pytest.raises((Misuse, KeyRefused)):
        counting(stage, app).start_many([(1,), wrong, (2,)])
    assert app.runs() == []


def test_one_that_is_refused_does_not_hold_up_the_others(stage: Stage) -> None:
    app = stage.process()
    sync = counting(stage, app)
    sync.start(2, 5)
    with pytest.raises(PayloadMismatch) as caught:
        sync.start_many([(1,), (2, 6), (3,)])
    assert caught.value.__notes__ == ["This was item 2 of 3. 2 are started; start_many again starts the others."]
    assert len(app.runs()) == 3


def test_many_that_are_never_awaited_are_not_done(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="inner:{order}")
    async def inner(order: int) -> None: ...

    @app.flow(key="order:{order}")
    async def sync(order: int) -> None:
        inner.start_many([order])

    with pytest.raises(NeedsReview, match=r"inner\.start_many .*never awaited"):
        Called(sync)(1)


# -- items and what is beside them --------------------------------------------------------------------


def test_each_passes_on_what_stands_behind_the_step(stage: Stage, style: Style) -> None:
    app = stage.process()

    def ship(line: str, carrier: str, express: bool = False) -> str:
        stage.do(line)
        return f"{line} by {carrier}{' express' if express else ''}"

    step = style.step(app, ship, repeat="safe")

    def steps(order: Any) -> Any:
        return (yield app.each(["A", "B"], step, "dhl", key="{item}", express=True))

    assert style.flow(app, steps)(1) == ["A by dhl express", "B by dhl express"]


def test_a_step_with_an_id_of_its_own_sees_them_too(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe", id="{line}:{carrier}")
    def ship(line: str, carrier: str) -> None: ...

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        app.each(["A"], ship, "dhl")
        app.each(["A"], ship, "ups")

    sync(1)
    assert set(stage.entries("sync", "order:1")) == {"ship[A:dhl]", "ship[A:ups]"}


def test_only_what_failed_is_tried_again_with_the_same_arguments(stage: Stage) -> None:
    app, closed = stage.process(), {"B"}

    @app.step(repeat="safe", retry=Retry(attempts=1))
    def ship(line: str, carrier: str) -> str:
        if line in closed:
            raise NotDone("closed")
        stage.do(f"{line} {carrier}")
        return carrier

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return app.each(["A", "B"], ship, "dhl", key="{item}")

    with pytest.raises(BatchFailed):
        sync(1)
    closed.clear()
    assert sync.retry(1) == ["dhl", "dhl"]
    assert stage.effects == {"A dhl": 1, "B dhl": 1}


def test_what_changed_beside_an_item_stops_the_run(stage: Stage) -> None:
    def flow(app: App, carrier: str) -> Any:
        @app.step(repeat="safe")
        def ship(line: str, carrier: str) -> None: ...

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> None:
            app.each(["A"], ship, carrier, key="{item}")
            app.sleep("1d")

        return sync

    with pytest.raises(Waiting):
        flow(stage.process(), "dhl")(1)
    stage.clock.advance(90_000)
    with pytest.raises(NeedsReview, match="another carrier"):
        flow(stage.process(), "ups")(1)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), (("dhl", 1), {}), (("dhl",), {"weight": 1})], ids=str)
def test_arguments_that_do_not_fit_the_step_are_refused_before_anything_is_done(
    stage: Stage, args: Any, kwargs: Any
) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    def ship(line: str, carrier: str) -> None:
        stage.do("ship")

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        app.each(["A"], ship, *args, key="{item}", **kwargs)

    with pytest.raises(Misuse, match="does not fit"):
        sync(1)
    assert stage.effects == {}
