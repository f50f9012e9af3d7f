"""An id names one call of a run: a second one with the same id is refused, at once and in sequence."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.unit.flows.stage import Stage, Style
from twiceproof import Absent, App, Misuse, Waiting, check
from twiceproof.flows.engine import session
from twiceproof.flows.engine import step_runner as carry

KINDS: dict[str, Any] = {
    "never": "never",
    "keyed": "keyed",
    "safe": "safe",
    "check": check(lambda sku: Absent, settling=0),
}


def def_pair(stage: Stage, app: App, repeat: Any, second: str) -> Any:
    """Reserves two at once: the first is not over before the second has come."""
    begun, over = threading.Event(), threading.Event()

    @app.step(repeat=repeat, id="{sku}")
    def reserve(sku: str) -> str:
        stage.do(sku)
        if sum(stage.effects.values()) == 1:
            begun.set()
            over.wait(5)
        return sku

    def other() -> str:
        begun.wait(5)
        try:
            return reserve(second)
        finally:
            over.set()

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        return app.gather(lambda: reserve("A"), other)

    return sync


def async_pair(stage: Stage, app: App, repeat: Any, second: str) -> Any:
    begun, over = asyncio.Event(), asyncio.Event()

    @app.step(repeat=repeat, id="{sku}")
    async def reserve(sku: str) -> str:
        stage.do(sku)
        if sum(stage.effects.values()) == 1:
            begun.set()
            await over.wait()
        return sku

    async def other() -> str:
        await begun.wait()
        try:
            return await reserve(second)
        finally:
            over.set()

    @app.flow(key="order:{order}", name="sync")
    async def sync(order: int) -> Any:
        return await app.gather(reserve("A"), other())

    return lambda order: asyncio.run(sync(order))


PAIRS = pytest.mark.parametrize("pair", [def_pair, async_pair])


@PAIRS
@pytest.mark.parametrize("kind", KINDS)
def test_two_calls_at_once_with_the_same_id_act_once(stage: Stage, pair: Any, kind: str) -> None:
    with pytest.raises(Misuse, match=r"reserve\[A\] is already under way"):
        pair(stage, stage.process(), KINDS[kind], "A")(1)
    assert stage.effects == {"A": 1}
    assert stage.record("sync", "order:1").state == "failed"


@PAIRS
@pytest.mark.parametrize("kind", KINDS)
def test_two_calls_at_once_with_ids_of_their_own_both_act(stage: Stage, pair: Any, kind: str) -> None:
    assert pair(stage, stage.process(), KINDS[kind], "B")(1) == ["A", "B"]
    assert stage.effects == {"A": 1, "B": 1}


def lines(stage: Stage, app: App, style: Style, then: Any = None) -> Any:
    """Reserves one line after the other."""

    def reserve(line: list[Any]) -> int:
        stage.do(f"{line[0]} {line[1]}")
        return int(line[1])

    step = style.step(app, reserve, id="{line[0]}")

    def steps(order: list[list[Any]]) -> Any:
        found = []
        for line in order:
            found.append((yield step(line)))
        if then is not None:
            yield then()
        return found

    return style.flow(app, steps, key="order")


@pytest.mark.parametrize("second", [1, 2], ids=["the same", "another"])
def test_a_second_call_in_sequence_with_the_same_id_is_told_of(stage: Stage, style: Style, second: int) -> None:
    sync = lines(stage, stage.process(), style)
    with pytest.raises(Misuse, match=r"reserve\[A\] was called before in this run: two calls have the same id"):
        sync([["A", 1], ["A", second]])
    assert stage.effects == {"A 1": 1}
    with pytest.raises(Misuse, match="was called before"):
        sync.retry([["A", 1], ["A", second]])
    assert stage.effects == {"A 1": 1}


def test_calls_in_sequence_with_ids_of_their_own_are_all_done(stage: Stage, style: Style) -> None:
    assert lines(stage, stage.process(), style)([["A", 1], ["B", 1]]) == [1, 1]


def test_a_replay_may_call_what_it_called_the_first_time(stage: Stage, style: Style) -> None:
    for _ in range(2):
        app = stage.process()
        with pytest.raises(Waiting):
            lines(stage, app, style, lambda app=app: app.sleep("3d"))([["A", 1], ["B", 1]])
    assert stage.effects == {"A 1": 1, "B 1": 1}


def test_a_run_of_an_earlier_release_goes_on_as_it_began(
    stage: Stage, style: Style, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the second call was answered with what the first returned. Refused now, the whole run would be undone."""
    with monkeypatch.context() as earlier:
        earlier.setattr(carry, "has_id", lambda name: False)
        earlier.setattr(session, "has_id", lambda name: False)
        app = stage.process()
        with pytest.raises(Waiting):
            lines(stage, app, style, lambda: app.sleep("3d"))([["A", 1], ["A", 1]])
    stage.clock.advance(3 * 86_400)
    app = stage.process()
    assert lines(stage, app, style, lambda: app.sleep("3d"))([["A", 1], ["A", 1]]) == [1, 1]
    assert stage.effects == {"A 1": 1}


def test_a_batch_does_not_take_items_of_an_earlier_one_for_its_own(stage: Stage) -> None:
    app = stage.process()

    @app.step(id="{sku}")
    def reserve(sku: str) -> None:
        stage.do(sku)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        app.each(["A", "B"], reserve)
        app.each(["B", "C"], reserve)

    with pytest.raises(Misuse, match=r"reserve\[B\] was called before"):
        sync(1)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_guarded_function_may_be_asked_twice_for_the_same(stage: Stage, at_once: bool) -> None:
    """It guards itself: the second is answered."""
    app = stage.process()

    @app.once(key="sku:{sku}")
    def reserve(sku: str) -> str:
        stage.do(sku)
        return sku

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        if at_once:
            return app.gather(lambda: reserve("A"), lambda: reserve("A"), limit=1)
        return [reserve("A"), reserve("A")]

    assert sync(1) == ["A", "A"]
    assert stage.effects == {"A": 1}
