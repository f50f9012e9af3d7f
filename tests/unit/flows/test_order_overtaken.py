"""Ordered runs that are overtaken after they have begun: nothing that is open about them is dropped with them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from tests.unit.flows.order_shop import Outside, declare, event
from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.test_order_flows import drain, newest
from twiceproof import Absent, App, Cancelled, NeedsReview, NotDone, Retry, Stale, Waiting, by, check
from twiceproof.claims.claim import address_of
from twiceproof.claims.queries import evidence_of
from twiceproof.operations import block

REPEATS = ("safe", "keyed", "never", check(lambda order: Absent()))
ORDERED: dict[str, Any] = {
    "key": "order:{order[id]}",
    "name": "sync",
    "order": by(object="{order[id]}", version="{order[v]}"),
}


def evidence(app: App, version: int) -> list[tuple[str, bytes]]:
    space = address_of("default", "sync", f"order:a:{version}").space
    return [(piece.step, bytes(piece.result)) for piece in block(evidence_of(app.store, space))]


def states(stage: Stage, version: int) -> dict[str, str]:
    return {name: entry.state for name, entry in stage.entries("sync", f"order:a:{version}").items()}


def state(stage: Stage, version: int) -> str:
    return stage.record("sync", f"order:a:{version}").state


# -- while a step is under way -------------------------------------------------------------------


def frozen(stage: Stage, outside: Outside, repeat: Any, meanwhile: Callable[[App], None], style: Style) -> Any:
    """A flow whose process stands still in its step, past its lease, before its effect."""
    away = stage.process()

    def save(order: dict[str, Any]) -> str:
        if order["v"] == 2:
            stage.lapse()
            meanwhile(stage.process())
        outside.set(order["id"], order["v"])
        return f"saved {order['v']}"

    step = style.step(away, save, repeat=repeat)

    def steps(order: Any) -> Any:
        return (yield step(order))

    return away, style.flow(away, steps, **ORDERED)


@pytest.mark.parametrize("repeat", REPEATS, ids=["safe", "keyed", "never", "check"])
def test_a_step_that_a_newer_version_came_past_is_for_a_person_and_not_taken_as_done(
    stage: Stage, style: Style, repeat: Any
) -> None:
    """Its effect was on its way: nobody could hold it back. That it may have landed last is not passed over."""
    outside = Outside()
    away, sync = frozen(stage, outside, repeat, lambda app: declare(app, outside)(event(3)), style)
    with pytest.raises(NeedsReview, match="save: version 3 of a was let through while it was under way"):
        sync(event(2))
    assert outside.applied == {"a": [3, 2]}
    assert (state(stage, 2), states(stage, 2)) == ("review", {"save": "unknown"})
    assert evidence(away, 2) == [("save", b'"saved 2"')]
    (piece,) = away.history("sync/order:a:2").evidence
    away.settle_run("sync/order:a:2", "happened", by="ann", evidence=piece.id)
    drain(stage, away)
    assert (state(stage, 2), states(stage, 2)) == ("done", {"save": "done"})
    with pytest.raises(Stale):
        sync(event(2))
    assert outside.applied == {"a": [3, 2]}


@pytest.mark.parametrize("repeat", REPEATS, ids=["safe", "keyed", "never", "check"])
def test_a_step_that_only_an_older_version_came_past_is_done(stage: Stage, style: Style, repeat: Any) -> None:
    """The twin: the slot was another's meanwhile, but nothing newer was let through."""
    outside = Outside()

    def older(app: App) -> None:
        with pytest.raises(Stale):
            declare(app, outside)(event(1))

    away, sync = frozen(stage, outside, repeat, older, style)
    assert sync(event(2)) == "saved 2"
    assert outside.applied == {"a": [2]}
    assert evidence(away, 2) == []


def test_what_is_known_not_to_have_been_done_needs_nobody(stage: Stage) -> None:
    outside, away, other = Outside(), stage.process(), stage.process()
    overtaking = declare(other, outside)

    @away.step(repeat="never", retry=Retry(attempts=2, first="10s"))
    def save(order: dict[str, Any]) -> None:
        stage.lapse()
        overtaking(event(2))
        raise NotDone("refused")

    @away.flow(**ORDERED)
    def sync(order: dict[str, Any]) -> None:
        save(order)

    with pytest.raises(Waiting):
        sync(event(1))
    drain(stage, away)
    assert (state(stage, 1), states(stage, 1)) == ("done", {"save": "retry"})
    assert outside.applied == {"a": [2]}


# -- between two steps ---------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", REPEATS, ids=["safe", "keyed", "never", "check"])
def test_a_step_that_was_not_begun_because_the_turn_was_lost_is_no_open_question(stage: Stage, repeat: Any) -> None:
    outside, away, other = Outside(), stage.process(), stage.process()
    overtaking, asleep = declare(other, outside), [True]

    @away.step(repeat=repeat)
    def save(order: dict[str, Any]) -> str:
        outside.set(order["id"], order["v"])
        return "saved"

    @away.flow(**ORDERED)
    def sync(order: dict[str, Any]) -> str:
        if asleep:
            asleep.clear()
            stage.lapse()
            with pytest.raises(Stale):
                Context().run(overtaking, event(1))  # no part of this run
        return str(save(order))

    with pytest.raises(Waiting, match="lost its turn"):
        sync(event(2))
    drain(stage, away)
    assert sync(event(2)) == "saved"
    assert outside.applied == {"a": [2]}


# -- after a crash -------------------------------------------------------------------------------


def crash_in(stage: Stage, repeat: Any) -> None:
    """Version 1 dies in its step, without a word."""
    dying = stage.process()

    @dying.step(repeat=repeat)
    def save(order: dict[str, Any]) -> None:
        dying.engine.dead = True  # type: ignore[attr-defined]

    @dying.flow(**ORDERED)
    def sync(order: dict[str, Any]) -> None:
        save(order)

    with pytest.raises(Died):
        sync(event(1))
    stage.lapse()


@pytest.mark.parametrize("repeat", ["never", check(lambda order: Absent())], ids=["never", "check"])
@pytest.mark.parametrize("word", ["happened", "did-not-happen"])
def test_an_unknown_outcome_is_not_dropped_with_its_version(stage: Stage, repeat: Any, word: Any) -> None:
    crash_in(stage, repeat)
    outside, app = Outside(), stage.process()
    sync = declare(app, outside)
    sync(event(2))
    drain(stage, app)
    with pytest.raises(NeedsReview, match="version 2 of a was let through before, but the outcome of save is unknown"):
        sync(event(1))
    app.settle_run("sync/order:a:1", word, by="ann", result=None)
    drain(stage, app)
    with pytest.raises(Stale):
        sync(event(1))
    assert outside.applied == {"a": [2]}


def test_what_may_be_repeated_freely_is_dropped_without_a_word(stage: Stage) -> None:
    """The twin: whether a harmless step was done is nobody's question."""
    crash_in(stage, "safe")
    app = stage.process()
    sync = declare(app, Outside())
    sync(event(2))
    drain(stage, app)
    assert state(stage, 1) == "done"


def test_no_answer_of_a_provider_is_not_dropped_with_its_version(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="keyed", retry=Retry(first="10m"))
    def charge(order: dict[str, Any]) -> None:
        if order["v"] == 1:
            raise TimeoutError("no answer")

    @app.flow(**ORDERED)
    def sync(order: dict[str, Any]) -> None:
        charge(order)

    with pytest.raises(Waiting):
        sync(event(1))
    sync(event(2))
    stage.clock.advance(700)
    drain(stage, app)
    assert (state(stage, 1), states(stage, 1)) == ("review", {"charge": "unknown"})
    app.settle_run("sync/order:a:1", "did-not-happen", by="ann")
    drain(stage, app)
    assert state(stage, 1) == "done"


# -- undoing -------------------------------------------------------------------------------------


def shop(stage: Stage, app: App, *, fails: bool = False, tries: int = 1) -> Any:
    """`charge` can be undone, at the so-manieth try; version 1 then fails, or sleeps."""
    left = [tries]

    @app.step(repeat="safe", retry=Retry(first="30s", most="30s"))
    def refund(order: dict[str, Any]) -> None:
        left[0] -= 1
        if left[0] > 0:
            raise ConnectionRefusedError
        stage.do(f"refund {order['v']}")

    @app.step(repeat="never", undo=refund)
    def charge(order: dict[str, Any]) -> None:
        stage.do(f"charge {order['v']}")

    @app.step(repeat="never")
    def ship(order: dict[str, Any]) -> None:
        if fails and order["v"] == 1:
            raise NotDone("no such address", final=True)
        stage.do(f"ship {order['v']}")

    @app.flow(**ORDERED)
    def sync(order: dict[str, Any]) -> None:
        charge(order)
        if not fails and order["v"] == 1:
            app.sleep("1h")
        ship(order)

    return sync


def test_what_failed_is_undone_to_the_end_although_a_newer_version_came(stage: Stage) -> None:
    app = stage.process()
    sync = shop(stage, app, fails=True, tries=2)
    with pytest.raises(Waiting, match="undo:charge will be tried again"):
        sync(event(1))
    sync(event(2))
    stage.clock.advance(60)
    drain(stage, app)
    assert state(stage, 1) == "failed"
    assert stage.effects == {"charge 1": 1, "refund 1": 1, "charge 2": 1, "ship 2": 1}
    assert newest(stage) == "2"


def failing(stage: Stage, app: App, repeat: Any, undoing: Callable[[], object]) -> Any:
    """Version 1 fails and is undone by `refund`, in which `undoing` happens before its effect."""

    @app.step(repeat=repeat)
    def refund(order: dict[str, Any]) -> None:
        undoing()
        stage.do(f"refund {order['v']}")

    @app.step(repeat="never", undo=refund)
    def charge(order: dict[str, Any]) -> None:
        stage.do(f"charge {order['v']}")

    @app.flow(**ORDERED)
    def sync(order: dict[str, Any]) -> None:
        charge(order)
        if order["v"] == 1:
            raise NotDone("no such address", final=True)

    return sync


@pytest.mark.parametrize("repeat", ["safe", "keyed"])
def test_what_died_in_its_first_undo_is_undone_although_a_newer_version_came(stage: Stage, repeat: Any) -> None:
    dying, app = stage.process(), stage.process()

    def die() -> None:
        dying.engine.dead = True  # type: ignore[attr-defined]
        raise Died

    with pytest.raises(Died):
        failing(stage, dying, repeat, die)(event(1))
    stage.lapse()
    failing(stage, app, repeat, lambda: None)(event(2))
    drain(stage, app)
    assert state(stage, 1) == "failed"
    assert stage.effects == {"charge 1": 1, "charge 2": 1, "refund 1": 1}


def test_what_was_given_back_before_its_first_undo_is_undone_despite_a_newer_version(
    stage: Stage,
) -> None:
    leaving, app = stage.process(), stage.process()

    @leaving.step(repeat="never")
    def ship(order: dict[str, Any]) -> None:
        leaving.runtime.draining = True
        raise NotDone("no such address", final=True)

    @leaving.step(repeat="safe")
    def refund(order: dict[str, Any]) -> None: ...

    @leaving.step(repeat="never", undo=refund)
    def charge(order: dict[str, Any]) -> None:
        stage.do(f"charge {order['v']}")

    @leaving.flow(**ORDERED)
    def sync(order: dict[str, Any]) -> None:
        charge(order)
        ship(order)

    with pytest.raises(Waiting, match="given back between steps"):
        sync(event(1))
    shop(stage, app, fails=True)(event(2))
    drain(stage, app)
    assert state(stage, 1) == "failed"
    assert stage.effects == {"charge 1": 1, "refund 1": 1, "charge 2": 1, "ship 2": 1}


def test_what_is_cancelled_is_undone_although_a_newer_version_came(stage: Stage) -> None:
    app = stage.process()
    sync = shop(stage, app)
    with pytest.raises(Waiting) as waits:
        sync(event(1))
    sync(event(2))
    waits.value.handle.cancel("ann")
    drain(stage, app)
    assert state(stage, 1) == "failed"
    assert stage.effects == {"charge 1": 1, "refund 1": 1, "charge 2": 1, "ship 2": 1}
    assert newest(stage) == "2"


def test_who_waits_and_is_neither_cancelled_nor_failed_is_dropped(stage: Stage) -> None:
    """The twin: what it had done stays in its history."""
    app = stage.process()
    sync = shop(stage, app)
    with pytest.raises(Waiting):
        sync(event(1))
    sync(event(2))
    stage.clock.advance(3_700)
    drain(stage, app)
    assert state(stage, 1) == "done"
    assert stage.effects == {"charge 1": 1, "charge 2": 1, "ship 2": 1}


def test_what_is_cancelled_before_it_was_let_through_moves_nothing(stage: Stage) -> None:
    outside, app = Outside(), stage.process()

    @app.flow(**ORDERED | {"order": by(object="{order[id]}", version="{order[v]}", gap="park", patience="5s")})
    def sync(order: dict[str, Any]) -> None:
        outside.set(order["id"], order["v"])

    sync(event(1))
    with pytest.raises(Waiting, match="waits for version 2") as waits:
        sync(event(3))
    waits.value.handle.cancel("ann")
    with pytest.raises(Cancelled, match="cancelled by ann"):
        sync(event(3))
    assert (state(stage, 3), newest(stage)) == ("failed", "1")
    sync(event(2))
    assert outside.applied == {"a": [1, 2]}
