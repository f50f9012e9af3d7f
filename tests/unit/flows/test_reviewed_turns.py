"""Turns and slots: none is kept by mistake, and nobody waits for himself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from tests.unit.flows.test_triggers import look
from tests.unit.flows.waits import work
from twiceproof import App, KeyRefused, Misuse, Waiting, by

LARGE = "y" * 400_000


# -- slots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", range(1, 8))
def test_whatever_the_store_refuses_no_slot_is_held_on_to(stage: Stage, commit: int) -> None:
    app = stage.process(commit)

    @app.flow(key="order:{order}", name="sync", limit=1, limit_per={"customer:{order}": 1})
    def sync(order: int) -> str:
        return "ok"

    with pytest.raises(Died):
        sync(1)
        raise Died  # what is only given back too late lapses
    assert not app._heartbeat._holds


def test_a_result_is_not_lost_over_a_slot_that_cannot_be_given_back(stage: Stage) -> None:
    app = stage.process(4)  # slot, run, its end, and then nothing more

    @app.flow(key="order:{order}", name="sync", limit=1)
    def sync(order: int) -> str:
        return "ok"

    assert sync(1) == "ok"


@dataclass
class Order:
    id: int
    customer: str
    text: str = ""


@pytest.mark.parametrize("text", ["", LARGE])
def test_a_worker_finds_the_slots_of_a_run_in_its_typed_input_however_large(stage: Stage, text: str) -> None:
    app = stage.process()

    @app.flow(key="order:{order.id}", name="sync", limit_per={"customer:{order.customer}": 1})
    def sync(order: Order) -> str:
        return order.customer

    sync.start(Order(1, "ann", text))
    work(app)
    assert stage.record("sync", "order:1").state == "done"


def test_a_run_that_can_never_have_its_turn_is_refused_at_once(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order[id]}", name="sync", limit_per={"customer:{order[customer]}": 1})
    def sync(order: dict[str, Any]) -> None: ...

    with pytest.raises(KeyRefused, match="customer"):
        sync.start({"id": 1})


def test_what_a_worker_could_not_read_the_slot_from_is_refused_at_once(stage: Stage) -> None:
    """Without an annotation it comes back as a dict: queued, it would be put off again and again."""
    app = stage.process()

    @app.flow(key="order:{order.id}", name="sync", limit_per={"customer:{order.customer}": 1})
    def sync(order: Any) -> None: ...

    for begin in (sync, sync.start):
        with pytest.raises(KeyRefused, match="customer"):
            begin(Order(1, "ann"))
    assert not app.store.scan("run").block().records


@pytest.mark.parametrize("typed", [True, False])
def test_nor_is_an_order_begun_that_nobody_could_read_again(stage: Stage, typed: bool) -> None:
    app = stage.process()

    def sync(order: Any) -> str:
        return str(order.customer)

    sync.__annotations__["order"] = Order if typed else Any
    flow = app.flow(key="order:{order.id}", order=by(object="{order.customer}", version="{order.id}"))(sync)
    if typed:
        assert flow(Order(1, "ann")) == "ann"
        return
    with pytest.raises(KeyRefused):
        flow(Order(1, "ann"))
    assert not app.store.scan("run").block().records


@pytest.mark.parametrize("limits", [{"limit": 1}, {"limit_per": {"all": 1}}])
def test_a_flow_that_calls_itself_does_not_wait_for_the_slot_that_it_holds(stage: Stage, limits: Any) -> None:
    """It lies down and gives the slot back; what it called is left to a worker, and wakes it."""
    app, depth = stage.process(), [0]

    @app.flow(key="folder:{level}", name="sync", **limits)
    def sync(level: int) -> int:
        depth[0] += 1
        assert depth[0] == 1
        try:
            return 1 + sync(level - 1) if level else 0
        finally:
            depth[0] -= 1

    with pytest.raises(Waiting, match="waits for the run of sync"):
        sync(3)
    assert stage.record("sync", "folder:2").state == "queued"
    while look(app):
        pass
    assert sync(3) == 3


def test_a_flow_that_calls_another_that_is_limited_does_not_lie_down(stage: Stage) -> None:
    """The twin."""
    app = stage.process()

    @app.flow(key="parcel:{order}", limit=1)
    def ship(order: int) -> str:
        return "shipped"

    @app.flow(key="order:{order}", name="sync", limit=1)
    def sync(order: int) -> str:
        return ship(order)

    assert sync(1) == "shipped"


# -- turns ---------------------------------------------------------------------------------------


def mixed(app: App, *, thread: bool) -> Any:
    @app.step(repeat="never", id="{n}")
    async def awaited(n: int) -> int:
        return n

    @app.step(repeat="never", id="{n}")
    def plain(n: int) -> int:
        return n

    async def branch(n: int) -> int:
        return await asyncio.to_thread(plain, n) if thread else plain(n)

    @app.flow(key="order:{order}", name="sync")
    async def sync(order: int) -> int:
        return sum(await app.gather(*(awaited(n) for n in range(5)), *(branch(n) for n in range(5))))

    return sync


def test_a_plain_step_beside_awaited_ones_is_refused_where_it_would_block_them(stage: Stage) -> None:
    with pytest.raises(Misuse, match=r"asyncio\.to_thread"):
        asyncio.run(mixed(stage.process(), thread=False)(1))


def test_on_a_thread_of_its_own_it_is_welcome(stage: Stage) -> None:
    assert asyncio.run(mixed(stage.process(), thread=True)(1)) == 20


def test_a_run_does_not_loop_for_another_that_nobody_here_can_carry_out(stage: Stage) -> None:
    newer, app = stage.process(), stage.process()

    @newer.flow(key="parcel:{order}", version="2")
    def ship(order: int) -> str:
        return "new"

    @app.flow(key="parcel:{order}", name="ship")
    def old_ship(order: int) -> str:
        return "old"

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return old_ship(order)

    ship.start(1)
    stage.clock.advance(10)
    with pytest.raises(Waiting):
        sync(1)
    due_at = stage.record("sync", "order:1").due_at
    assert due_at is not None
    assert due_at - stage.clock.now() >= 1
