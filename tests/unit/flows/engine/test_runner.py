"""What breaks off a call of the engine ends the replay, whatever the flow's function makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.flows.stage import Stage, Style
from tests.unit.flows.waits import work
from twiceproof import App, Happened, NeedsReview, NotDone, Retry, StepFailed, StoreUnavailable, Waiting, check

Shop = Callable[..., Any]
KINDS: dict[str, Any] = {
    "never": "never",
    "keyed": "keyed",
    "safe": "safe",
    "check": check(lambda order: Happened("found")),
}


# -- an interrupt that the flow swallows ----------------------------------------------------------


def def_shop(stage: Stage, app: App, repeat: Any, *, slow: bool = True) -> Any:
    """Its payment is interrupted the first time, and it has a plan B."""

    @app.step(repeat=repeat)
    def pay(order: int) -> str:
        stage.do("pay")
        if slow and stage.effects["pay"] == 1:
            raise KeyboardInterrupt
        return "paid"

    @app.step
    def plan_b(order: int) -> str:
        stage.do("plan b")
        return "b"

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        try:
            return pay(order)
        except KeyboardInterrupt:
            return plan_b(order)

    return sync


def async_shop(stage: Stage, app: App, repeat: Any, *, slow: bool = True, beside: bool = False) -> Any:
    """The same, by a time-out of the flow's own."""
    limits: list[asyncio.Timeout] = []

    @app.step(repeat=repeat)
    async def pay(order: int) -> str:
        stage.do("pay")
        if slow and stage.effects["pay"] == 1:
            limits[-1].reschedule(0)
            await asyncio.Event().wait()
        return "paid"

    @app.step
    async def plan_b(order: int) -> str:
        stage.do("plan b")
        return "b"

    async def paid(order: int) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                return await pay(order)
        except TimeoutError:
            return await plan_b(order)

    @app.flow(key="order:{order}", name="sync")
    async def sync(order: int) -> str:
        if not beside:
            return await paid(order)
        return str((await app.gather(paid(order)))[0])

    return lambda order: asyncio.run(sync(order))


def beside_shop(stage: Stage, app: App, repeat: Any, *, slow: bool = True) -> Any:
    return async_shop(stage, app, repeat, slow=slow, beside=True)


SHOPS = pytest.mark.parametrize("shop", [def_shop, async_shop, beside_shop])


@SHOPS
def test_an_unknown_outcome_is_for_a_person_though_the_flow_swallowed_the_interrupt(stage: Stage, shop: Shop) -> None:
    sync = shop(stage, stage.process(), "never")
    for _ in range(2):
        with pytest.raises(NeedsReview, match="while pay ran: whether it was done is unknown"):
            sync(1)
    assert stage.record("sync", "order:1").state == "review"
    assert stage.effects == {"pay": 1}
    assert {name: entry.state for name, entry in stage.entries("sync", "order:1").items()} == {"pay": "unknown"}


@SHOPS
@pytest.mark.parametrize("kind", ["keyed", "safe", "check"])
def test_what_may_be_repeated_is_gone_on_with_where_the_flow_swallowed_the_interrupt(
    stage: Stage, shop: Shop, kind: str
) -> None:
    app = stage.process()
    sync = shop(stage, app, KINDS[kind])
    with pytest.raises(Waiting, match="cut off by"):
        sync(1)
    assert stage.record("sync", "order:1").state == "queued"
    stage.clock.advance(10)  # until the destination may be asked
    assert sync(1) == ("found" if kind == "check" else "paid")
    assert stage.effects == {"pay": 1 if kind == "check" else 2}


@SHOPS
@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_of_the_flow_that_is_not_reached_changes_nothing(stage: Stage, shop: Shop, kind: str) -> None:
    assert shop(stage, stage.process(), KINDS[kind], slow=False)(1) == "paid"
    assert stage.record("sync", "order:1").state == "done"


def test_a_flow_that_swallows_an_interrupt_and_does_nothing_more_is_not_done(stage: Stage) -> None:
    app = stage.process()

    @app.step
    def pay(order: int) -> None:
        raise KeyboardInterrupt

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        try:
            pay(order)
        except KeyboardInterrupt:
            return "gave up"
        return "paid"

    with pytest.raises(NeedsReview, match="KeyboardInterrupt while pay ran"):
        sync(1)


def test_nor_is_one_that_turns_it_into_a_failure(stage: Stage) -> None:
    """Failed, everything else would be undone around an open question."""
    app = stage.process()

    @app.step
    def pay(order: int) -> None:
        raise KeyboardInterrupt

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        try:
            pay(order)
        except KeyboardInterrupt:
            raise ValueError("no") from None

    with pytest.raises(NeedsReview, match="KeyboardInterrupt while pay ran"):
        sync(1)


def test_a_flow_that_tries_again_by_itself_does_not_go_round_for_ever(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    def pay(order: int) -> str:
        stage.do("pay")
        raise KeyboardInterrupt

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        while True:
            try:
                return pay(order)
            except (Exception, KeyboardInterrupt):  # noqa: BLE001 - as users write it
                stage.do("swallowed")

    with pytest.raises(Waiting, match="cut off by KeyboardInterrupt"):
        sync(1)
    assert stage.effects == {"pay": 1, "swallowed": 1}


def test_an_interrupt_that_is_passed_on_is_raised_and_the_run_goes_on_later(stage: Stage) -> None:
    app = stage.process()
    told: list[str] = []

    @app.step(repeat="safe")
    def pay(order: int) -> str:
        stage.do("pay")
        if stage.effects["pay"] == 1:
            raise KeyboardInterrupt
        return "paid"

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        try:
            return pay(order)
        except KeyboardInterrupt:
            told.append("stopping")
            raise

    with pytest.raises(KeyboardInterrupt):
        sync(1)
    assert stage.record("sync", "order:1").state == "queued"
    work(app)
    assert stage.record("sync", "order:1").state == "done"
    assert told == ["stopping"]


def test_a_wait_in_place_that_is_broken_off_is_gone_on_with(stage: Stage) -> None:
    """Not met again in a replay, it would send the flow another way than the first time."""
    app = stage.process()

    @app.step(repeat="safe")
    async def tell(what: str) -> None:
        stage.do(what)

    @app.flow(key="order:{order}", name="sync")
    async def sync(order: int) -> str:
        try:
            async with asyncio.timeout(0):
                await app.sleep("1s")
        except TimeoutError:
            await tell("too late")
        return "in time"

    with pytest.raises(Waiting, match="cut off by CancelledError"):
        asyncio.run(sync(1))
    assert not stage.effects


# -- a store that is away, and a flow that swallows that -------------------------------------------


def away(app: App, step: str) -> None:
    """The store cannot be reached at the first write about this step."""
    write, left = app.store.write, [step]

    def failing(*writes: Any, **more: Any) -> Any:
        if any(one.at.key in left for one in writes):
            left.clear()
            raise StoreUnavailable("the database is away")
        return write(*writes, **more)

    app.store.write = failing  # type: ignore[method-assign]


def transfer_shop(stage: Stage, app: App, style: Style, *, again: bool = False) -> Any:
    def charge(order: int) -> str:
        stage.do("charge")
        return "charged"

    def transfer(order: int) -> str:
        stage.do("transfer")
        return "transferred"

    first, other = style.step(app, charge), style.step(app, transfer)

    def steps(order: int) -> Any:
        while True:
            try:
                return (yield first(order))
            except Exception:  # noqa: BLE001 - as users write it
                stage.do("swallowed")
                if not again:
                    return (yield other(order))

    return style.flow(app, steps)


@pytest.mark.parametrize("again", [False, True])
def test_a_flow_that_swallows_a_store_error_does_not_go_another_way(stage: Stage, style: Style, again: bool) -> None:
    app = stage.process()
    sync = transfer_shop(stage, app, style, again=again)
    away(app, "charge")
    with pytest.raises(StoreUnavailable, match="the database is away"):
        sync(1)
    assert stage.effects == {"swallowed": 1}
    assert stage.record("sync", "order:1").state == "held"


def test_nor_one_that_returns_or_fails_for_it(stage: Stage) -> None:
    for order, fails in ((1, False), (2, True)):
        app = stage.process()

        @app.step
        def charge(order: int) -> None:
            stage.do("charge")

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int, fails: bool = fails) -> str:
            try:
                charge(order)
            except Exception:  # noqa: BLE001 - as users write it
                if fails:
                    raise ValueError("no") from None
            return "done"

        away(app, "charge")
        with pytest.raises(StoreUnavailable, match="the database is away"):
            sync(order)
        assert stage.record("sync", f"order:{order}").state == "held"
    assert not stage.effects


def test_an_interrupt_after_a_swallowed_store_error_stays_one(stage: Stage) -> None:
    app = stage.process()

    @app.step
    def charge(order: int) -> None: ...

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        try:
            charge(order)
        except Exception:  # noqa: BLE001 - as users write it
            raise KeyboardInterrupt from None

    away(app, "charge")
    with pytest.raises(KeyboardInterrupt):
        sync(1)


def test_a_failed_step_may_be_swallowed_and_the_flow_goes_another_way(stage: Stage, style: Style) -> None:
    app = stage.process()

    def charge(order: int) -> str:
        raise NotDone("no", final=True)

    def transfer(order: int) -> str:
        return "transferred"

    first, other = style.step(app, charge), style.step(app, transfer)

    def steps(order: int) -> Any:
        try:
            return (yield first(order))
        except StepFailed:
            return (yield other(order))

    assert style.flow(app, steps)(1) == "transferred"
    assert stage.record("sync", "order:1").state == "done"


def test_a_store_error_of_a_step_s_own_is_a_failure_of_that_step(stage: Stage, style: Style) -> None:
    """It may be another store than the ledger's."""
    app = stage.process()

    def charge(order: int) -> str:
        raise StoreUnavailable("another database is away")

    step = style.step(app, charge, repeat="safe", retry=Retry(attempts=1))

    def steps(order: int) -> Any:
        try:
            yield step(order)
        except StepFailed:
            return "another way"

    assert style.flow(app, steps)(1) == "another way"
