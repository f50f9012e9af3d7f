"""A word to stop is never lost, and what cannot be undone is for a person, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.waits import work
from twiceproof import Absent, App, Cancelled, Misuse, NeedsReview, NotDone, ResultTypeWarning, Retry, Waiting, check
from twiceproof.claims.request import Arguments


def handle(app: App) -> Any:
    return app.attach(flow="sync", key="order:1")


# -- cancelling ----------------------------------------------------------------------------------


def waits(stage: Stage, app: App, then: Any) -> Any:
    """Cancelled by its own step, it goes on to lie down."""

    @app.step(repeat="safe")
    def unreserve(order: int) -> None:
        stage.do("unreserve")

    @app.step(repeat="safe", undo=unreserve)
    def reserve(order: int) -> None:
        stage.do("reserve")
        if stage.effects["reserve"] == 1:
            assert handle(app).cancel("ann") == "held"

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        reserve(order)
        then()

    return sync


@pytest.mark.parametrize("wait", ["wait_for", "sleep"])
def test_a_cancellation_that_comes_before_a_run_lies_down_is_heeded(stage: Stage, wait: str) -> None:
    app = stage.process()
    then = {"wait_for": lambda: app.wait_for("paid"), "sleep": lambda: app.sleep("3d")}[wait]
    with pytest.raises(Cancelled, match="by ann"):
        waits(stage, app, then)(1)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"reserve": 1, "unreserve": 1}


@pytest.mark.parametrize("kind", ["never", "safe", "keyed"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_a_cancellation_in_any_step_is_heeded_also_in_the_last(
    stage: Stage, style: Style, where: str, kind: Any
) -> None:
    app = stage.process()

    def unreserve(result: str) -> None:
        stage.do(f"undo {result}")

    def named(name: str) -> Any:
        def reserve(order: int) -> str:
            stage.do(name)
            if name == where:
                assert handle(app).cancel("ann") == "held"
            return name

        return style.step(app, reserve, name=name, repeat=kind, undo=style.step(app, unreserve, repeat="safe"))

    first, last = named("first"), named("last")

    def steps(order: int) -> Any:
        yield first(order)
        yield last(order)
        return "done"

    with pytest.raises(Cancelled, match="by ann"):
        style.flow(app, steps)(1)
    assert stage.record("sync", "order:1").state == "failed"
    begun = ["first"] if where == "first" else ["first", "last"]
    assert stage.effects == dict.fromkeys([*begun, *(f"undo {done}" for done in begun)], 1)


def test_a_cancellation_of_a_flow_that_does_nothing_more_is_heeded(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        assert handle(app).cancel("ann") == "held"
        return "done"

    with pytest.raises(Cancelled, match="by ann"):
        sync(1)


def test_a_cancellation_that_comes_when_all_is_done_changes_nothing(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return "done"

    assert sync(1) == "done"
    assert handle(app).cancel("ann") == "done"
    assert sync(1) == "done"


def test_a_run_that_is_interrupted_does_not_forget_its_cancellation(stage: Stage) -> None:
    app = stage.process()

    def interrupt() -> None:
        stage.do("interrupt")
        if stage.effects["interrupt"] == 1:
            raise KeyboardInterrupt
        app.sleep("3d")

    with pytest.raises(KeyboardInterrupt):
        waits(stage, app, interrupt)(1)
    assert stage.record("sync", "order:1").state == "queued"
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects["unreserve"] == 1


@pytest.mark.parametrize(("undo", "said"), [(True, "what it did is undone"), (False, "nothing was undone")])
def test_that_something_is_undone_is_said_only_where_it_was(
    stage: Stage, undo: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = stage.process()

    @app.step(repeat="safe", undo=(lambda order: stage.do("unpack")) if undo else None)
    def pack(order: int) -> None:
        app.attach(flow="sync", key="order:1").cancel("ann")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        pack(order)

    sync.start(1)
    with caplog.at_level("INFO", "twiceproof.work"):
        app.worker().run(until_idle=True)
    (line,) = [record.getMessage() for record in caplog.records if "cancelled by ann" in record.getMessage()]
    assert said in line
    assert stage.effects["unpack"] == int(undo)


def test_what_has_no_undo_is_said_to_be_left(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    app = stage.process()

    @app.step(repeat="safe", undo=lambda order: None)
    def reserve(order: int) -> None: ...

    @app.step(repeat="safe")
    def pack(order: int) -> None:
        app.attach(flow="sync", key="order:1").cancel("ann")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        reserve(order)
        pack(order)

    sync.start(1)
    with caplog.at_level("INFO", "twiceproof.work"):
        app.worker().run(until_idle=True)
    assert "reserve is undone; pack has no undo" in caplog.text


# -- undoing -------------------------------------------------------------------------------------


def undone(stage: Stage, app: App, undo: Any, lines: int = 1) -> Any:
    @app.step(repeat="never")
    def unreserve(line: int) -> Any:
        stage.do("unreserve")
        return undo()

    @app.step(repeat="safe", undo=unreserve, id="{line}")
    def reserve(line: int) -> None:
        stage.do("reserve")

    @app.step(repeat="safe", id="{line}")
    def ship(line: int) -> None:
        stage.do("ship")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        for line in range(lines):
            reserve(line)
        if stage.effects["moody"] == 0:
            raise ValueError("moody")
        ship(1)

    return sync


def refuse() -> None:
    raise ValueError("no")


def test_an_undo_that_fails_is_for_a_person_who_has_it_tried_again(stage: Stage) -> None:
    app = stage.process()
    with pytest.raises(
        NeedsReview, match=r"undo:reserve\[0\]: its error does not tell whether it was done \(ValueError: no\)"
    ):
        undone(stage, app, refuse)(1)
    app = stage.process()
    undone(stage, app, lambda: None)
    app.settle_run(handle(app).id, "did-not-happen", by="ann")
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"reserve": 1, "unreserve": 2}


def test_or_says_that_it_was_undone_by_hand(stage: Stage) -> None:
    app = stage.process()
    with pytest.raises(NeedsReview):
        undone(stage, app, refuse)(1)
    app.settle_run(handle(app).id, "happened", result=None, by="ann")
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects["unreserve"] == 1


def test_what_an_undo_returns_need_not_be_kept(stage: Stage) -> None:
    with pytest.raises(ValueError), pytest.warns(ResultTypeWarning):
        undone(stage, stage.process(), object)(1)
    assert stage.record("sync", "order:1").state == "failed"


def test_an_undo_that_cannot_be_begun_is_for_a_person(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe", undo=lambda order: None)
    def reserve(order: int) -> None: ...

    reserve.step.undo.arguments = Arguments(lambda order, nobody_has_it: None)  # declared so, it would be refused

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        reserve(order)
        raise ValueError("x")

    with pytest.raises(NeedsReview):
        sync(1)
    assert stage.record("sync", "order:1").state == "review"


def reserves(stage: Stage, app: App) -> tuple[Any, Any]:
    """Two steps that can be undone, and a fault behind them; and the undo of the first."""

    @app.step(repeat="safe")
    def unreserve(order: int) -> None:
        stage.do("unreserve")

    @app.step(repeat="safe", undo=unreserve)
    def reserve(order: int) -> None: ...

    @app.step(repeat="safe", undo=lambda order: stage.do("unbook"))
    def book(order: int) -> None: ...

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int, booked: bool) -> None:
        reserve(order)
        if booked:
            book(order)
        raise ValueError("x")

    return sync, unreserve.step


@pytest.mark.parametrize("booked", [False, True])
def test_what_could_not_be_undone_is_undone_by_the_move_that_is_named_first(stage: Stage, booked: bool) -> None:
    app = stage.process()
    sync, undo = reserves(stage, app)
    whole, undo.arguments = undo.arguments, Arguments(lambda order, nobody_has_it: None)
    with pytest.raises(NeedsReview, match="could not be undone"):
        sync(1, booked)
    move, *others = app.history("sync/order:1").next
    assert move.why == "Once what kept it from being undone is repaired, undo what is done, and stop:"
    assert move.words == ("review", "settle", "sync/order:1", "--undo")
    # Of what is undone in part, nothing is offered that would be refused.
    assert [each.words[1] for each in others] == (["settle"] if booked else ["retry", "settle"])

    undo.arguments = whole
    app.settle_run("sync/order:1", "undo", by="ann")
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == ({"unbook": 1} if booked else {}) | {"unreserve": 1}


def test_a_plain_undo_is_carried_out_in_an_awaited_flow_too(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    def unbook(result: int) -> None:
        stage.do(f"unbook {result}")

    @app.step(repeat="safe", undo=unbook)
    async def book(order: int) -> int:
        return order

    @app.step(repeat="safe", undo=unbook)
    def note(order: int) -> int:
        return order + 10

    @app.step(repeat="safe", retry=Retry(attempts=1))
    async def pay(order: int) -> None:
        raise NotDone("no")

    @app.flow(key="order:{order}", name="sync")
    async def sync(order: int) -> None:
        await book(order)
        note(order)
        await pay(order)

    with pytest.raises(NotDone):
        asyncio.run(sync(1))
    assert stage.record("sync", "order:1").state == "failed"
    assert list(stage.effects.items()) == [("unbook 11", 1), ("unbook 1", 1)]


def test_a_plain_undo_that_fails_in_an_awaited_flow_is_for_a_person(stage: Stage) -> None:
    app = stage.process()

    def unbook(result: int) -> None:
        raise TimeoutError

    @app.step(repeat="safe", undo=unbook)
    async def book(order: int) -> int:
        return order

    @app.flow(key="order:{order}", name="sync")
    async def sync(order: int) -> None:
        await book(order)
        raise ValueError("a bug")

    with pytest.raises(NeedsReview, match="undo:book: no answer came"):
        asyncio.run(sync(1))


def test_an_awaited_undo_or_probe_of_a_plain_step_is_refused(stage: Stage) -> None:
    app = stage.process()

    async def later(**known: Any) -> Any: ...

    for options in ({"undo": later}, {"repeat": check(later)}):
        with pytest.raises(Misuse, match="make both of the same kind"):

            @app.step(**options)
            def book(order: int) -> int:
                return order

        @app.step(**options)
        async def booked(order: int) -> int:
            return order


def test_an_undo_or_a_probe_with_a_parameter_its_step_lacks_is_refused_at_once(
    stage: Stage,
) -> None:
    app = stage.process()
    for what, offered, options in (
        ("undo", "order, result", {"undo": lambda room, result: None}),
        ("probe", "order, effect_key", {"repeat": check(lambda room, effect_key: Absent)}),
    ):
        with pytest.raises(Misuse, match=f"The {what} of book needs room, .* it can take {offered}, by these names"):

            @app.step(**options)
            def book(order: int) -> int:
                return order


def test_one_that_asks_for_what_there_is_or_may_do_without_is_taken(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    def unbook(result: int, order: int, room: str = "any", *more: Any, **known: Any) -> None: ...

    for options in ({"undo": unbook}, {"undo": lambda: None}, {"repeat": check(lambda order, effect_key: Absent)}):

        @app.step(**options)
        def book(order: int) -> int:
            return order


def test_a_run_whose_undoing_had_begun_does_nothing_new(stage: Stage) -> None:
    def killed() -> None:
        raise NotDone("tried again later")

    app = stage.process()
    with pytest.raises(Waiting):
        app.runtime.roll = lambda: 1.0
        for _ in range(8):
            undone(stage, app, killed)(1)
    stage.do("moody")  # this time its body would go on
    stage.clock.advance(86_400)
    app = stage.process()
    undone(stage, app, lambda: None)
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects["ship"] == 0


@pytest.mark.parametrize("repeat", ["safe", "keyed", "never"])
def test_a_run_that_died_in_its_first_undo_does_not_go_on_as_if_nothing_were_undone(stage: Stage, repeat: Any) -> None:
    """Its body failed over something that is gone by the time it is taken over."""
    moods = [ValueError("not today")]

    def shop(app: App, *, dies: bool) -> Any:
        @app.step(repeat=repeat)
        def refund(order: int) -> None:
            stage.do("refund")
            if dies:
                app.engine.dead = True  # type: ignore[attr-defined]

        @app.step(repeat="never", undo=refund)
        def charge(order: int) -> None:
            stage.do("charge")

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> str:
            charge(order)
            if moods:
                raise moods.pop()
            return "charged"

        return sync

    with pytest.raises(Died):
        shop(stage.process(), dies=True)(1)
    stage.lapse()
    app = stage.process()
    shop(app, dies=False)
    work(app)
    assert stage.record("sync", "order:1").state == ("review" if repeat == "never" else "failed")
    assert stage.effects == {"charge": 1, "refund": 1 if repeat == "never" else 2}


def last_step(stage: Stage, app: App, charge: Any, *, waits: bool = False) -> Any:
    """A flow that ends with what can be undone: nothing comes after it that could be refused."""

    @app.step(repeat="safe")
    def refund(order: int) -> None:
        stage.do("refund")

    @app.step(repeat="never", name="charge", undo=refund)
    def charged(order: int) -> None:
        stage.do("charge")
        charge()

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        charged(order)
        if waits:
            app.wait_for("paid")
        return "charged"

    return sync


def no_answer() -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("verdict", "did", "state", "refunds"),
    [("undo", True, "failed", 1), ("undo", False, "failed", 0), ("happened", None, "done", 0)],
)
def test_a_persons_word_to_undo_counts_also_where_nothing_was_left_to_do(
    stage: Stage, verdict: Any, did: bool | None, state: str, refunds: int
) -> None:
    app = stage.process()
    with pytest.raises(NeedsReview):
        last_step(stage, app, no_answer)(1)
    app.settle_run("sync/order:1", verdict, by="ann", did=did, result=None)
    work(app)
    assert stage.record("sync", "order:1").state == state
    assert (stage.effects["charge"], stage.effects["refund"]) == (1, refunds)


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_run_that_only_has_to_return_is_undone_all_the_same_if_it_is_cancelled(stage: Stage, cancelled: bool) -> None:
    app = stage.process()
    with pytest.raises(Waiting):
        last_step(stage, app, lambda: None, waits=True)(1)
    app.deliver_to(flow="sync", key="order:1", name="paid")
    if cancelled:
        handle(app).cancel("ann")
    work(app)
    assert stage.record("sync", "order:1").state == ("failed" if cancelled else "done")
    assert (stage.effects["charge"], stage.effects["refund"]) == (1, int(cancelled))


def test_a_large_run_that_was_undone_is_not_tried_again(stage: Stage) -> None:
    sync = undone(stage, stage.process(), lambda: None, lines=1_001)
    with pytest.raises(ValueError):
        sync(1)
    with pytest.raises(Misuse, match="was undone"):
        sync.retry(1)


# -- forking -------------------------------------------------------------------------------------


def forked(stage: Stage, app: App) -> Any:
    @app.step(repeat="never")
    def one(order: int) -> int:
        stage.do("one")
        return 1

    @app.step(repeat="never")
    def two(order: int) -> int:
        stage.do("two")
        return 2

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> int:
        return one(order) + two(order)

    return sync


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("commit", [1, 2, 3])
def test_a_fork_that_was_killed_half_way_is_made_anew(stage: Stage, commit: int, landed: bool) -> None:
    app = stage.process()
    forked(stage, app)(1)
    run = handle(app).id
    dying = stage.process(commit, landed=landed)
    forked(stage, dying)
    with pytest.raises(Died):
        dying.fork_run(run, key="again", from_step="two")
    if commit < 3 or not landed:
        app.fork_run(run, key="again", from_step="two")
    work(app)
    assert stage.record("sync", "again").state == "done"
    assert stage.effects == {"one": 1, "two": 2}


def test_a_fork_that_is_there_is_not_made_anew(stage: Stage) -> None:
    app = stage.process()
    forked(stage, app)(1)
    app.fork_run(handle(app).id, key="again")
    with pytest.raises(Misuse, match="is there already"):
        app.fork_run(handle(app).id, key="again")
