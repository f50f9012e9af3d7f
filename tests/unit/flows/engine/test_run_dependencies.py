"""A run that waits for another, whoever started that: woken when it has ended, and not five minutes later."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from contextvars import Context
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from tests.unit.flows.test_triggers import look
from twiceproof import App, Duplicate, Misuse, NeedsReview, NotDone, PriorFailure, ResultNotKept, StepFailed, Waiting


def declare(stage: Stage, app: App, during: Any = None) -> tuple[Any, Any]:
    """`during`: what happens while the inner run's step is at work."""

    @app.step(repeat="never")
    def pack(order: int) -> str:
        stage.do("pack")
        return during() if during is not None else "packed"

    @app.flow(key="parcel:{order}")
    def ship(order: int, held: bool = False) -> Any:
        return pack(order) if held else app.wait_for("label")

    @app.flow(key="order:{order}:{who}")
    def sync(order: int, who: str = "a", held: bool = False) -> Any:
        try:
            return ship(order, held)
        except StepFailed as error:
            return error.data["fault"].type

    return ship, sync


def is_due(stage: Stage, who: str = "a") -> bool:
    outer = stage.record("sync", f"order:1:{who}")
    return outer.due_at is not None and outer.due_at <= stage.clock.now()


def test_the_end_of_a_run_wakes_every_run_that_waits_for_it_whoever_started_it(stage: Stage) -> None:
    app = stage.process()
    ship, sync = declare(stage, app)
    ship.start(1)
    for who in ("a", "b"):
        with pytest.raises(Waiting, match="waits for the run of ship"):
            sync(1, who)
        assert not is_due(stage, who)
    app.deliver_to(flow="ship", key="parcel:1", name="label", payload="L1")
    assert look(app) == 1
    assert is_due(stage, "a")
    assert is_due(stage, "b")
    assert look(app) == 2
    assert sync(1, "a") == sync(1, "b") == "L1"


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_a_run_that_somebody_is_at_wakes_who_came_to_wait_for_it_meanwhile(stage: Stage, fails: bool) -> None:
    inner, outer = stage.process(), stage.process()

    def meanwhile() -> str:
        assert Context().run(look, outer) == 1
        assert stage.record("sync", "order:1:a").state == "waiting"
        assert not is_due(stage)
        if fails:
            raise NotDone("no", final=True)
        return "packed"

    ship, _ = declare(stage, inner, meanwhile)
    _, sync = declare(stage, outer)
    sync.start(1, held=True)
    if fails:
        with pytest.raises(NotDone, match="no"):
            ship(1, True)
    else:
        assert ship(1, True) == "packed"
    assert is_due(stage)
    assert look(outer) == 1
    assert sync(1, held=True) == ("PriorFailure" if fails else "packed")
    assert stage.effects == {"pack": 1}


def test_what_becomes_of_the_inner_run_by_a_persons_word_wakes_all_who_wait_for_it(stage: Stage) -> None:
    app = stage.process()

    def lost() -> str:
        raise TimeoutError

    ship, sync = declare(stage, app, lost)
    with pytest.raises(NeedsReview):
        ship(1, True)
    for who in ("a", "b"):
        with pytest.raises(NeedsReview, match="what it called waits for a person"):
            sync(1, who, True)
    app.settle_run("ship/parcel:1", "abandon", by="ann")
    assert look(app) == 2
    assert sync(1, "a", True) == sync(1, "b", True) == "PriorFailure"


def test_a_run_that_is_cancelled_before_it_began_wakes_who_waits_for_it(stage: Stage) -> None:
    app = stage.process()
    ship, sync = declare(stage, app)
    handle = ship.flow.drive(ship.flow.start((1,), {}, delay=3_600.0))
    with pytest.raises(Waiting):
        sync(1)
    app.attach(handle.id).cancel("ann")
    assert is_due(stage)
    assert sync(1) == "PriorFailure"


@pytest.mark.parametrize("through", [False, True], ids=["directly", "through another"])
def test_a_run_that_calls_itself_fails_and_does_not_wait_for_itself_for_ever(stage: Stage, through: bool) -> None:
    app = stage.process()

    @app.flow(key="parcel:{order}")
    def ship(order: int) -> Any:
        return sync(order)

    @app.flow(key="order:{order}")
    def sync(order: int) -> Any:
        return ship(order) if through else sync(order)

    with pytest.raises((Misuse, PriorFailure), match="is the very run that waits for this call"):
        sync(1)
    assert stage.record("sync", "order:1").state == "failed"


def test_a_run_that_calls_its_own_flow_with_another_key_is_no_circle(stage: Stage) -> None:
    """The twin."""
    app = stage.process()

    @app.flow(key="folder:{level}")
    def sync(level: int) -> int:
        return 1 + sync(level - 1) if level else 0

    assert sync(3) == 3


# -- handles -------------------------------------------------------------------------------------


def test_a_flow_that_asks_a_handle_for_its_result_lies_down_until_there_is_one(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="parcel:{order}")
    def ship(order: int) -> dict[str, int]:
        stage.do("ship")
        if order == 2:
            raise NotDone("no")
        return {"parcel": order}

    @app.flow(key="order:{order}:{who}")
    def sync(order: int, who: str = "a") -> Any:
        handle = ship.start(order) if who == "a" else app.attach(flow="ship", key=f"parcel:{order}")
        try:
            return handle.result()
        except StepFailed as error:
            return error.data["fault"].type

    for order, answer in ((1, {"parcel": 1}), (2, "PriorFailure")):
        with pytest.raises(Waiting):
            sync(order)
        with pytest.raises(Waiting):
            sync(order, "b")
        assert look(app) == 1
        assert look(app) == 2
        assert sync(order) == sync(order, "b") == answer


def test_an_awaited_handle_too(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="parcel:{order}")
    async def ship(order: int) -> int:
        return order

    @app.flow(key="order:{order}:{who}")
    async def sync(order: int, who: str = "a") -> int:
        handle = await ship.start(order) if who == "a" else await app.attach(flow="ship", key=f"parcel:{order}")
        first = await handle.result()
        return first + await handle.result()

    for who in ("a", "b"):
        with pytest.raises(Waiting):
            asyncio.run(sync(1, who))
    assert look(app) == 1
    assert look(app) == 2
    assert asyncio.run(sync(1, "a")) == asyncio.run(sync(1, "b")) == 2


def test_a_handle_that_is_asked_with_a_time_out_waits_in_place(stage: Stage) -> None:
    """The twin: who says how long, waits so long."""
    app = stage.process()

    @app.flow(key="parcel:{order}")
    def ship(order: int) -> int:
        return order

    @app.flow(key="order:{order}:{who}")
    def sync(order: int, who: str = "a") -> Any:
        handle = ship.start(order)
        try:
            return handle.result(timeout=0)
        except TimeoutError:
            return "not yet"

    assert sync(1) == "not yet"


# -- turns ---------------------------------------------------------------------------------------


def test_a_run_with_a_turn_suspends_rather_than_hold_it_while_it_waits(stage: Stage) -> None:
    """Each had what the other needed, and both waited in place for ever."""
    app, other = stage.process(), stage.process()

    def shop(app: App, meanwhile: Any = None) -> tuple[Any, Any]:
        @app.flow(key="parcel:{order}", limit=1)
        def ship(order: int) -> Any:
            return sync(order + 10) if order < 10 else "shipped"

        @app.flow(key="order:{order}:a", limit=1)
        def sync(order: int) -> Any:
            if meanwhile is not None:
                Context().run(meanwhile)
            return ship(order + 10) if order < 10 else "synced"

        return ship, sync

    def a_parcel_too() -> None:
        look(other)
        assert stage.record("ship", "parcel:2").state == "waiting"

    ship, _ = shop(other)
    _, sync = shop(app, a_parcel_too)
    ship.start(2)
    before = stage.clock.now()
    assert sync(1) == "shipped"
    assert stage.clock.now() - before < 5
    stage.clock.advance(1)
    while look(other):
        pass
    assert ship(2) == "synced"


# -- answers that stay what they are -------------------------------------------------------------


@pytest.mark.parametrize("what", ["a flow", "a function", "a result", "a handle"])
def test_an_answer_that_stays_the_same_ends_the_step_and_is_not_asked_for_again(stage: Stage, what: str) -> None:
    """It was asked for a thousand times, for weeks."""
    app = stage.process()

    @app.flow(key="parcel:{order}", on_duplicate="reject")
    def ship(order: int) -> int:
        return order

    @app.once(key="mail:{order}", on_duplicate="reject")
    def mail(order: int) -> int:
        return order

    @app.flow(key="label:{order}", keep_history="1s")
    def label(order: int) -> int:
        return order

    @app.flow(key="order:{order}")
    def sync(order: int) -> Any:
        if what == "a handle":
            return app.attach(flow="ship", key="nobody's").result()
        return {"a flow": ship, "a function": mail, "a result": label}[what](order)

    ship(1), mail(1), label(1)
    stage.clock.advance(2)
    expected = {"a result": ResultNotKept, "a handle": Misuse}.get(what, Duplicate)
    with pytest.raises(expected):
        sync(1)
    assert stage.record("sync", "order:1").state == "failed"


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("commit", range(1, 6))
@pytest.mark.parametrize("kind", ["flow", "once"])
def test_a_run_that_calls_again_what_it_called_before_it_was_killed_is_no_duplicate(
    stage: Stage, commit: int, landed: bool, kind: str
) -> None:
    def shop(app: App) -> Any:
        guarded = app.flow if kind == "flow" else functools.partial(app.once, repeat="safe")

        @guarded(key="parcel:{order}", on_duplicate="reject")
        def ship(order: int) -> int:
            return order

        @app.flow(key="order:{order}")
        def sync(order: int) -> int:
            return ship(order)

        return sync

    with suppress(Died):
        shop(stage.process(commit, landed=landed))(1)
    stage.lapse()
    assert shop(stage.process())(1) == 1


def test_a_handle_of_another_ledger_is_waited_for_in_place(stage: Stage) -> None:
    """Nobody there would wake this run."""
    app, elsewhere = stage.process(), Stage()
    other = elsewhere.process()

    @other.flow(key="parcel:{order}")
    def ship(order: int) -> int:
        return order

    @app.flow(key="order:{order}")
    def sync(order: int) -> Any:
        return other.attach(flow="ship", key=f"parcel:{order}").result()

    ship(1)
    assert sync(1) == 1
    assert stage.entries("sync", "order:1") == {}
    elsewhere.close()


def test_what_another_did_meanwhile_is_a_duplicate_also_after_a_crash(stage: Stage) -> None:
    """The twin: of a flow it is on record who began it."""

    def shop(app: App) -> tuple[Any, Any]:
        @app.flow(key="parcel:{order}", on_duplicate="reject")
        def ship(order: int) -> int:
            return order

        @app.flow(key="order:{order}")
        def sync(order: int) -> int:
            return ship(order)

        return ship, sync

    _, sync = shop(stage.process(2))
    with pytest.raises(Died):
        sync(1)
    ship, sync = shop(stage.process())
    ship(1)
    stage.lapse()
    with pytest.raises(Duplicate):
        sync(1)


# -- circles -------------------------------------------------------------------------------------


def test_runs_that_wait_for_each_other_are_left_to_a_person(stage: Stage) -> None:
    """Started apart, neither is the other's caller; they came round for ever."""
    app, other = stage.process(), stage.process()

    def shop(app: App, during: Any) -> tuple[Any, Any]:
        @app.step(repeat="safe")
        def pack(order: int) -> None:
            during()

        @app.flow(key="parcel:{order}")
        def ship(order: int) -> Any:
            try:
                return sync(order)
            except StepFailed as error:
                return error.data["fault"].type

        @app.flow(key="order:{order}:a")
        def sync(order: int) -> Any:
            pack(order)
            return ship(order)

        return ship, sync

    def the_parcel_too() -> None:
        Context().run(look, other)
        assert stage.record("ship", "parcel:1").state == "waiting"

    ship, _ = shop(other, lambda: None)
    _, sync = shop(app, the_parcel_too)
    ship.start(1)
    with pytest.raises(NeedsReview, match="waits for it in turn: none of them can end"):
        sync(1)
    look(app)
    assert stage.record("ship", "parcel:1").state == "review"  # for the same person
    app.settle_run("sync/order:1:a", "abandon", by="ann")
    while look(app):
        pass
    assert ship(1) == "PriorFailure"


def test_runs_that_wait_in_a_row_are_no_circle(stage: Stage) -> None:
    """The twin."""
    app = stage.process()

    @app.flow(key="{order}")
    def last(order: int) -> Any:
        return app.wait_for("go")

    @app.flow(key="{order}")
    def middle(order: int) -> Any:
        return last(order)

    @app.flow(key="{order}")
    def first(order: int) -> Any:
        return app.gather(lambda: middle(order), lambda: last(order))

    for flow in (last, middle, first):
        flow.start(1)
    while look(app):
        pass
    assert [stage.record(name, "1").state for name in ("first", "middle", "last")] == ["waiting"] * 3
    app.deliver_to(flow="last", key="1", name="go", payload="L1")
    while look(app):
        pass
    assert first(1) == ["L1", "L1"]
