"""Limits: how many runs at once, in all and per key, how many in a time, and which come first."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.unit.flows.stage import Stage
from tests.unit.flows.test_triggers import look
from twiceproof import App, InProgress, Misuse, NotDone, Retry
from twiceproof.flows.limits import admit, make_rate
from twiceproof.operations import block


def nested(stage: Stage, app: App, **options: Any) -> Any:
    """A flow whose step, while it runs, lets a worker look for more to do: what is let in runs at the same time."""
    depth = [0]

    @app.step(repeat="safe")
    def work(order: int, customer: str) -> None:
        depth[0] += 1
        stage.effects["most at once"] = max(stage.effects["most at once"], depth[0])
        stage.do("run")
        look(app, limit=1)
        depth[0] -= 1

    @app.flow(key="order:{order}", **options)
    def sync(order: int, customer: str) -> None:
        work(order, customer)

    return sync


def run_all(stage: Stage, app: App) -> None:
    for _ in range(50):
        if not look(app, limit=1):
            stage.clock.advance(1)


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 2), (None, 4)])
def test_no_more_runs_at_once_than_the_limit(stage: Stage, limit: int | None, most: int) -> None:
    app = stage.process()
    flow = nested(stage, app, limit=limit)
    for order in range(4):
        flow.start(order, "ann")
    run_all(stage, app)
    assert stage.effects["run"] == 4
    assert stage.effects["most at once"] == most


def test_the_limit_per_key_holds_only_the_same_key_apart(stage: Stage) -> None:
    app = stage.process()
    flow = nested(stage, app, limit_per={"{customer}": 1})
    for order, customer in enumerate(["ann", "ann", "bob", "bob"]):
        flow.start(order, customer)
    run_all(stage, app)
    assert stage.effects["run"] == 4
    assert stage.effects["most at once"] == 2


def test_a_slot_whose_holder_died_is_free_when_its_lease_is_over(stage: Stage) -> None:
    dying = stage.process(3)
    flow = nested(stage, dying, limit=1)
    with pytest.raises(Exception, match="killed"):
        flow(1, "ann")
    app = stage.process()
    alive = nested(stage, app, limit=1)
    alive.start(2, "ann")
    look(app)
    assert stage.effects["run"] == 1
    stage.lapse()
    run_all(stage, app)
    assert stage.effects["run"] == 3  # the one that was cut off, again, and the other


def test_a_finished_run_is_answered_without_a_turn(stage: Stage) -> None:
    app = stage.process()
    flow = nested(stage, app, limit=1)
    flow(1, "ann")
    before = app.engine.commits  # type: ignore[attr-defined]
    flow(1, "ann")
    assert app.engine.commits == before  # type: ignore[attr-defined]


def test_a_duplicate_is_told_at_once_that_the_first_is_at_work(stage: Stage) -> None:
    app = stage.process()
    told: list[Exception] = []

    @app.step(repeat="safe")
    def work() -> None:
        def call() -> None:
            try:
                sync(1)
            except InProgress as error:
                told.append(error)

        duplicate = threading.Thread(target=call, daemon=True)
        duplicate.start()
        duplicate.join(2)

    @app.flow(key="order:{order}", limit=1)
    def sync(order: int) -> None:
        work()

    sync(1)
    assert len(told) == 1


def test_a_retry_waits_for_its_turn_too(stage: Stage) -> None:
    app = stage.process()
    asked: list[int] = []

    @app.step(repeat="safe", retry=Retry(attempts=1))
    def work(order: int) -> None:
        stage.do("work")
        if stage.effects["work"] == 1:
            raise NotDone("not now")

    @app.flow(key="order:{order}", limit=1)
    def sync(order: int) -> None:
        work(order)

    with pytest.raises(NotDone):
        sync(1)
    limits = sync.flow.limits
    enter = limits.enter
    limits.enter = lambda *args, **kwargs: asked.append(1) or enter(*args, **kwargs)
    sync.retry(1)
    assert asked == [1]


def test_a_run_that_goes_on_after_a_wait_does_not_count_as_begun(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}", rate="1/h")
    def sync(order: int) -> str:
        app.sleep("1m")
        return "slept"

    handle = sync.start(1)
    look(app)
    stage.clock.advance(61)
    look(app)
    assert handle.state == "done"


def test_so_many_runs_begin_in_a_time(stage: Stage) -> None:
    app = stage.process()
    rate = make_rate("3/m")
    assert [block(admit(app.store, "default", "sync", rate)) for _ in range(3)] == [0, 0, 0]
    assert block(admit(app.store, "default", "sync", rate)) == pytest.approx(20)
    stage.clock.advance(20)
    assert block(admit(app.store, "default", "sync", rate)) == 0


def test_a_flow_with_a_rate_is_spread_over_time(stage: Stage) -> None:
    app = stage.process()
    flow = nested(stage, app, rate="2/10s")
    for order in range(4):
        flow.start(order, "ann")
    look(app)
    assert stage.effects["run"] == 2
    run_all(stage, app)
    assert stage.effects["run"] == 4


@pytest.mark.parametrize("rate", ["0/m", "fast", "10", "10/fortnight", 5])
def test_what_is_no_rate_is_refused(rate: Any) -> None:
    with pytest.raises(Misuse):
        make_rate(rate)


@pytest.mark.parametrize("limit", [0, -1, True, "3"])
def test_what_is_no_limit_is_refused(stage: Stage, limit: Any) -> None:
    with pytest.raises(Misuse, match="not a number of runs"):
        nested(stage, stage.process(), limit=limit)


def test_workers_take_flows_of_a_higher_priority_first(stage: Stage) -> None:
    app = stage.process()
    order: list[str] = []

    def declare(name: str, priority: Any) -> Any:
        @app.flow(key="{n}", name=name, priority=priority)
        def work(n: int) -> None:
            order.append(name)

        return work

    for name, priority in (("slow", "low"), ("plain", "normal"), ("urgent", "high")):
        declare(name, priority).start(1)
        stage.clock.advance(1)
    app.worker(concurrency=1).run(until_idle=True)
    assert order == ["urgent", "plain", "slow"]
    with pytest.raises(Misuse, match="priority='huge'"):
        declare("other", "huge")
