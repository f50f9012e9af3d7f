"""A forgotten `await`: the run is not done without what was called and never begun."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.flows.stage import Called, Stage
from twiceproof import App, NeedsReview

HERE = __file__


class Shop:
    """A flow of which one call is made the way a test says."""

    def __init__(self, stage: Stage, app: App, *, lead: bool = True) -> None:
        self.stage, self.app, self.lead = stage, app, lead
        app.broker("main", "memory://")
        app.route("orders.*", to="main")

        @app.step(repeat="safe")
        async def pay(order: int) -> str:
            stage.do("pay")
            return f"paid {order}"

        @app.step(repeat="safe")
        async def ship(order: int) -> str:
            stage.do("ship")
            return f"shipped {order}"

        @app.once(key="mail:{order}", repeat="safe")
        async def mail(order: int) -> None:
            stage.do("mail")

        @app.flow(key="inner:{order}")
        async def inner(order: int) -> None:
            stage.do("inner")

        self.pay, self.ship, self.mail, self.inner = pay, ship, mail, inner

    def flow(self, call: Callable[[Shop, int], Any]) -> Any:
        @self.app.flow(key="order:{order}")
        async def sync(order: int) -> str:
            call(self, order)
            return await self.ship(order)

        return Called(sync)

    def awaiting(self, call: Callable[[Shop, int], Awaitable[Any]]) -> Any:
        @self.app.flow(key="order:{order}", name="sync")
        async def sync(order: int) -> str:
            await call(self, order)
            return await self.ship(order)

        return Called(sync)


@pytest.fixture
def shop(stage: Stage) -> Shop:
    return Shop(stage, stage.process())


FORGOTTEN: dict[str, Callable[[Shop, int], Any]] = {
    "pay": lambda shop, order: shop.pay(order),
    "mail": lambda shop, order: shop.mail(order),
    "inner": lambda shop, order: shop.inner(order),
    "inner.start": lambda shop, order: shop.inner.start(order),
    "inner.start_many": lambda shop, order: shop.inner.start_many([order]),
    "inner.retry": lambda shop, order: shop.inner.retry(order),
    "app.sleep": lambda shop, order: shop.app.sleep("3d"),
    "app.wait_for": lambda shop, order: shop.app.wait_for("paid"),
    "app.approve": lambda shop, order: shop.app.approve("pay", show=order),
    "app.gather": lambda shop, order: shop.app.gather(shop.pay(order)),
    "app.each": lambda shop, order: shop.app.each([order], shop.pay, key="{item}"),
    "app.send": lambda shop, order: shop.app.send("orders.paid", {"order": order}),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_run_is_not_done_without_what_was_never_awaited(shop: Shop, what: str) -> None:
    line = FORGOTTEN[what].__code__.co_firstlineno
    with pytest.raises(NeedsReview, match="never awaited") as caught:
        shop.flow(FORGOTTEN[what])(1)
    assert f"{what} ({HERE}:{line})" in str(caught.value)
    assert shop.app.runs(flow="sync")[0].state == "review"
    assert shop.stage.effects == {"ship": 1}


AWAITED = ["pay", "mail", "inner", "inner.start", "inner.start_many", "app.gather", "app.each", "app.send"]


@pytest.mark.parametrize("what", AWAITED)
def test_what_is_awaited_is_done(shop: Shop, what: str) -> None:
    assert shop.awaiting(FORGOTTEN[what])(1) == "shipped 1"


def test_what_is_awaited_later_is_not_forgotten(shop: Shop) -> None:
    @shop.app.flow(key="order:{order}")
    async def sync(order: int) -> list[str]:
        one = shop.pay(order)
        both: list[str] = await shop.app.gather(one, shop.ship(order))
        return both

    assert Called(sync)(1) == ["paid 1", "shipped 1"]


def test_a_task_that_is_awaited_is_not_forgotten(shop: Shop) -> None:
    @shop.app.flow(key="order:{order}")
    async def sync(order: int) -> str:
        return await asyncio.create_task(shop.pay(order))

    assert Called(sync)(1) == "paid 1"


def test_a_task_that_was_not_waited_for_is_forgotten(shop: Shop) -> None:
    tasks = []

    @shop.app.flow(key="order:{order}")
    async def sync(order: int) -> None:
        tasks.append(asyncio.create_task(shop.pay(order)))

    async def go() -> Any:
        try:
            await sync(1)
        finally:
            await asyncio.gather(*tasks, return_exceptions=True)

    with pytest.raises(NeedsReview, match=r"pay \(.*never awaited"):
        asyncio.run(go())
    assert shop.stage.effects["pay"] == 0


def test_a_step_that_is_still_under_way_is_not_done(shop: Shop) -> None:
    tasks = []

    @shop.app.step(repeat="safe")
    async def slow(order: int) -> None:
        await asyncio.sleep(30)

    @shop.app.flow(key="order:{order}")
    async def sync(order: int) -> None:
        tasks.append(asyncio.create_task(slow(order)))
        await asyncio.sleep(0)

    async def go() -> Any:
        try:
            await sync(1)
        finally:
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with pytest.raises(NeedsReview, match="slow was called and never awaited to its end"):
        asyncio.run(go())


def test_an_async_def_step_in_a_def_flow_is_never_begun(shop: Shop) -> None:
    @shop.app.flow(key="order:{order}")
    def sync(order: int) -> str:
        shop.pay(order)
        return "done"

    with pytest.raises(NeedsReview, match="make the flow an `async def`"):
        sync(1)


@pytest.mark.parametrize("what", AWAITED)
def test_with_the_await_in_its_place_the_run_goes_on(stage: Stage, what: str) -> None:
    before = Shop(stage, stage.process())
    with pytest.raises(NeedsReview):
        before.flow(FORGOTTEN[what])(1)
    after = Shop(stage, stage.process())
    sync = after.awaiting(FORGOTTEN[what])
    assert after.app.history("sync/order:1").next[0].words[:2] == ("runs", "retry")
    after.app.retry_run("sync/order:1")
    assert sync(1) == "shipped 1"
    assert stage.effects["ship"] == 1
    assert stage.effects["pay"] == (what in ("pay", "app.gather", "app.each"))


def test_something_else_that_is_new_still_stops_it(stage: Stage) -> None:
    before = Shop(stage, stage.process())
    with pytest.raises(NeedsReview):
        before.flow(FORGOTTEN["pay"])(1)
    after = Shop(stage, stage.process())
    sync = after.awaiting(FORGOTTEN["mail"])
    after.app.retry_run("sync/order:1")
    with pytest.raises(NeedsReview, match=r"mail.* is new before ship"):
        sync(1)
    assert stage.effects == {"ship": 1}


def test_what_a_step_leaves_unawaited_is_its_own_affair(shop: Shop) -> None:
    @shop.app.step(repeat="safe")
    async def outer(order: int) -> str:
        shop.pay(order).close()
        return "done"

    @shop.app.flow(key="order:{order}")
    async def sync(order: int) -> str:
        return await outer(order)

    assert Called(sync)(1) == "done"


def test_what_has_begun_is_no_longer_kept(shop: Shop) -> None:
    """A flow of a million steps must not remember each of them."""
    from twiceproof.flows.engine.context import session_var

    kept = []

    @shop.app.flow(key="order:{order}")
    async def sync(order: int) -> None:
        session = session_var.get()
        assert session is not None
        for _ in range(3):
            await shop.pay(order)
            kept.append(len(session.pending_calls._calls))

    Called(sync)(1)
    assert kept == [0, 0, 0]


def test_an_async_def_step_is_a_coroutine_function_to_everybody(shop: Shop) -> None:
    for function in (shop.pay, shop.mail, shop.inner):
        assert inspect.iscoroutinefunction(function)
        assert not inspect.iscoroutinefunction(Shop.flow)
