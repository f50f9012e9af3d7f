"""Runs that a deployment stops: a mistake in the flow's own body, and results that no longer fit, or were not kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.unit.flows.stage import Stage
from tests.unit.flows.waits import work
from twiceproof import App, Misuse, NeedsReview, NotDone, PriorFailure, ResultTypeWarning
from twiceproof.errors import KeyRefused


class OutOfStock(KeyError):
    """Somebody's own, raised on purpose."""


def booking(stage: Stage, app: App, body: Any) -> Any:
    """A flow that has done something which can be undone, when `body` goes on."""

    @app.step(repeat="safe", undo=lambda: stage.do("cancel"))
    def book() -> str:
        stage.do("book")
        return "room 7"

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        return body(book())

    return sync


MISTAKES = {
    "AttributeError": lambda room: room.id,
    "TypeError": lambda room: room + 1,
    "NameError": lambda room: nowhere,  # type: ignore[name-defined] # noqa: F821
    "KeyError": lambda room: {}[room],
    "IndexError": lambda room: [][0],
    "ModuleNotFoundError": lambda room: __import__("no_such_module_at_all"),
    "AssertionError": lambda room: (_ for _ in ()).throw(AssertionError("no")),
    "NotImplementedError": lambda room: (_ for _ in ()).throw(NotImplementedError),
    "ZeroDivisionError": lambda room: 1 // 0,
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_the_flows_own_code_parks_the_run_and_undoes_nothing(stage: Stage, kind: str) -> None:
    sync = booking(stage, stage.process(), MISTAKES[kind])
    with pytest.raises(NeedsReview, match=f"its own code broke off with {kind}: .*test_repaired_code.py:") as told:
        sync(1)
    assert type(told.value.__cause__).__name__ == kind
    assert stage.record("sync", "order:1").state == "review"
    assert stage.effects == {"book": 1}


def test_awaiting_a_step_that_is_declared_with_def_says_what_to_write(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    def book() -> str:
        return "room 7"

    @app.flow(key="order:{order}", name="sync")
    async def sync(order: int) -> str:
        return await book()  # type: ignore[misc]

    with pytest.raises(NeedsReview, match=r"TypeError: .*call it without await, or declare it with async def"):
        asyncio.run(sync(1))


def test_a_mistake_among_several_errors_parks_the_run(stage: Stage) -> None:
    def body(room: str) -> None:
        raise ExceptionGroup("two", [ValueError("no"), TypeError("what?")])

    with pytest.raises(NeedsReview, match="broke off"):
        booking(stage, stage.process(), body)(1)
    assert stage.effects == {"book": 1}


def test_a_wrong_call_of_the_apps_own_methods_parks_the_run(stage: Stage) -> None:
    app = stage.process()

    def body(room: str) -> None:
        app.sleep("soon")

    with pytest.raises(NeedsReview, match="broke off with Misuse: sleep='soon' is not a duration"):
        booking(stage, app, body)(1)
    assert stage.effects == {"book": 1}


@pytest.mark.parametrize(
    "error", [KeyRefused("no"), ValueError("no"), OutOfStock("no"), RuntimeError("no"), NotDone("no")]
)
def test_an_error_that_is_raised_on_purpose_fails_the_run_and_undoes_it(stage: Stage, error: Exception) -> None:
    def body(room: str) -> None:
        raise error

    with pytest.raises(type(error)):
        booking(stage, stage.process(), body)(1)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"book": 1, "cancel": 1}


def test_a_wrong_call_that_undoes_nothing_fails_the_run_as_it_is(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="nap:{n}")
    def nap(n: int) -> None:
        app.sleep("soon")

    with pytest.raises(Misuse, match="is not a duration"):
        nap(1)
    assert stage.record("nap", "nap:1").state == "failed"


def broken(stage: Stage) -> None:
    with pytest.raises(NeedsReview):
        booking(stage, stage.process(), lambda room: room.id)(1)


RUN = "sync/order:1"


@pytest.mark.parametrize("how", ["retry_run", "settle_run", "flow.retry"])
def test_after_a_fix_the_run_goes_on_with_what_was_done(stage: Stage, how: str) -> None:
    broken(stage)
    app = stage.process()
    sync = booking(stage, app, lambda room: room.upper())
    with pytest.raises(NeedsReview):
        sync(1)
    if how == "retry_run":
        app.retry_run(RUN)
    elif how == "settle_run":
        assert app.settle_run(RUN, "retry", by="ann", note="repaired").state == "queued"
    assert (sync.retry(1) if how == "flow.retry" else sync(1)) == "ROOM 7"
    assert stage.effects == {"book": 1}


def test_a_run_that_broke_off_can_be_undone_while_its_code_is_still_broken(stage: Stage) -> None:
    broken(stage)
    app = stage.process()
    booking(stage, app, lambda room: room.id)
    app.settle_run(RUN, "undo", by="ann")
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"book": 1, "cancel": 1}


def test_a_run_that_broke_off_can_be_abandoned(stage: Stage) -> None:
    broken(stage)
    app = stage.process()
    sync = booking(stage, app, lambda room: room)
    app.settle_run(RUN, "abandon", by="ann")
    with pytest.raises(PriorFailure):
        sync(1)
    assert stage.effects == {"book": 1}


def test_the_moves_of_a_run_that_broke_off_are_retry_undo_and_abandon(stage: Stage) -> None:
    broken(stage)
    moves = stage.process().history(RUN).next
    assert [move.words[:2] + move.words[3:] for move in moves] == [
        ("runs", "retry"),
        ("review", "settle", "--undo"),
        ("review", "settle", "--abandon"),
    ]
    assert moves[0].why == "Once its code is repaired, go on:"


def test_what_is_unknown_is_settled_before_it_is_tried_again(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="never")
    def pay() -> None:
        raise TimeoutError

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        pay()

    with pytest.raises(NeedsReview):
        sync(1)
    with pytest.raises(Misuse, match="outcome of pay is unknown"):
        app.settle_run(RUN, "retry", by="ann")
    with pytest.raises(NeedsReview):
        sync.retry(1)


# -- results that no longer fit --------------------------------------------------------------------


@dataclass
class Old:
    id: str


@dataclass
class New:
    id: str
    hotel: str


@dataclass
class Kept:
    id: str
    hotel: str = "the first one"


def reserving(stage: Stage, app: App, kind: Any) -> Any:
    def reserve(order: int) -> Any:
        stage.do("reserve")
        return Old("r-1")

    reserve.__annotations__["return"] = kind
    step = app.step(repeat="never", undo=lambda result: stage.do(f"cancel {result.id}"))(reserve)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        found = step(order)
        app.sleep("1h")
        return [found.id, getattr(found, "hotel", "")]

    return sync


def waiting_with_an_old_result(stage: Stage) -> None:
    app = stage.process()
    reserving(stage, app, Old).start(1)
    work(app)
    stage.clock.advance(3_601)


def test_a_result_that_no_longer_fits_its_type_stops_the_run_in_review(stage: Stage) -> None:
    waiting_with_an_old_result(stage)
    app = stage.process()
    sync = reserving(stage, app, New)
    work(app)
    assert stage.record("sync", "order:1").state == "review"
    with pytest.raises(
        NeedsReview, match=r"reserve: its result on record no longer fits .*missing required field `hotel`"
    ):
        sync(1)
    assert stage.effects == {"reserve": 1}
    moves = [move.why for move in app.history(RUN).next]
    assert moves[:3] == [
        "To go on with what reserve returned, said by hand:",
        "To go on without what reserve returned (the flow gets None):",
        "Once what reserve declares to return accepts what is on record, go on:",
    ]


def test_a_new_field_with_a_default_does_not_stop_it(stage: Stage) -> None:
    waiting_with_an_old_result(stage)
    assert reserving(stage, stage.process(), Kept)(1) == ["r-1", "the first one"]


def test_once_the_type_accepts_it_the_run_goes_on(stage: Stage) -> None:
    waiting_with_an_old_result(stage)
    with pytest.raises(NeedsReview):
        reserving(stage, stage.process(), New)(1)
    app = stage.process()
    sync = reserving(stage, app, Kept)
    app.settle_run(RUN, "retry", by="ann")
    assert sync(1) == ["r-1", "the first one"]
    assert stage.effects == {"reserve": 1}


def test_a_person_gives_the_result_in_its_new_shape(stage: Stage) -> None:
    waiting_with_an_old_result(stage)
    app = stage.process()
    sync = reserving(stage, app, New)
    with pytest.raises(NeedsReview):
        sync(1)
    with pytest.raises(Misuse, match="only a step with an unknown outcome is settled"):
        app.settle_run(RUN, "did-not-happen", by="ann", step="reserve")
    app.settle_run(RUN, "happened", by="ann", result={"id": "r-1", "hotel": "Ritz"})
    assert sync(1) == ["r-1", "Ritz"]
    assert stage.effects == {"reserve": 1}


def test_what_never_fitted_its_type_is_handed_on_as_the_first_time(stage: Stage) -> None:
    """A wrong annotation is told, and is no reason to stop a run that went on with it once."""
    app = stage.process()

    @app.step(repeat="safe")
    def count() -> int:
        return "three"  # type: ignore[return-value]

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        found = count()
        app.sleep("1h")
        return found

    sync.start(1)
    with pytest.warns(ResultTypeWarning):
        work(app)
    stage.clock.advance(3_601)
    with pytest.warns(ResultTypeWarning):
        assert sync(1) == "three"


@pytest.mark.parametrize("kind", ["once", "flow", "handle"])
def test_a_prior_result_that_no_longer_fits_is_not_handed_out(stage: Stage, kind: str) -> None:
    def declared(app: App, returned: Any) -> Any:
        def pay(order: int) -> Any:
            stage.do("pay")
            return Old("r-1")

        pay.__annotations__["return"] = returned
        return (app.once if kind == "once" else app.flow)(key="order:{order}")(pay)

    assert declared(stage.process(), Old)(1) == Old("r-1")
    app = stage.process()
    new = declared(app, New)
    with pytest.raises(
        NeedsReview, match=r"no longer fits what pay declares .*Give what is new in that type a default"
    ):
        app.attach(flow="pay", key="order:1").result() if kind == "handle" else new(1)
    assert declared(stage.process(), Kept)(1) == Kept("r-1")
    assert stage.effects == {"pay": 1}


# -- results that were not kept --------------------------------------------------------------------


class Opaque:
    """Has no JSON form."""


def fetching(stage: Stage, app: App, value: Any) -> Any:
    @app.step(repeat="never", undo=lambda: stage.do("undo"))
    def fetch() -> Any:
        stage.do("fetch")
        return value

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        found = fetch()
        return None if found is None else len(found)

    return sync


pytestmark = pytest.mark.filterwarnings("ignore:The result of fetch is not kept")


@pytest.mark.parametrize("value", [Opaque(), "x" * 9_000_000], ids=["no JSON", "over 8 MB"])
@pytest.mark.parametrize("move", ["result", "null", "undo", "abandon"])
def test_a_step_whose_result_could_not_be_kept_is_no_dead_end(stage: Stage, value: Any, move: str) -> None:
    app = stage.process()
    with pytest.raises(NeedsReview, match=r"fetch: it was done, but its result could not be kept"):
        fetching(stage, app, value)(1)
    assert stage.effects == {"fetch": 1}
    assert not any(one.words[:2] == ("runs", "retry") for one in app.history(RUN).next)
    app = stage.process()
    sync = fetching(stage, app, "abc")
    if move in ("result", "null"):
        app.settle_run(RUN, "happened", by="ann", result="four" if move == "result" else None)
        assert sync(1) == (4 if move == "result" else None)
        assert stage.effects == {"fetch": 1}
        return
    app.settle_run(RUN, move, by="ann")  # type: ignore[arg-type]
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == ({"fetch": 1, "undo": 1} if move == "undo" else {"fetch": 1})


def test_a_result_that_a_person_mistook_can_be_said_again(stage: Stage) -> None:
    app = stage.process()
    sync = fetching(stage, app, Opaque())
    with pytest.raises(NeedsReview):
        sync(1)
    app.settle_run(RUN, "happened", by="ann", result=7)
    with pytest.raises(NeedsReview, match="broke off with TypeError"):
        sync(1)
    app.settle_run(RUN, "happened", by="bob", step="fetch", result="four")
    assert sync(1) == 4
    assert msgspec.json.decode(app.history(RUN).steps[0].result) == "four"


def test_a_step_whose_result_was_too_large_says_so_before_it_acts_again(stage: Stage) -> None:
    app = stage.process()
    sync = fetching(stage, app, "x" * 9_000_000)
    with pytest.raises(NeedsReview):
        sync(1)
    with pytest.warns(ResultTypeWarning, match="fetch returned 9,000,002 bytes before"), pytest.raises(NeedsReview):
        sync(2)
