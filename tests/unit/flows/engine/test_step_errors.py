"""What may have happened is neither repeated after its provider forgot the key, nor undone around."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Barrier
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.waits import work
from twiceproof import App, NeedsReview, NotDone, Retry, StepFailed, Waiting, check
from twiceproof.clock import moment
from twiceproof.effects.base import Absent, Happened, Unknown

DAY = 86_400.0
HOURLY = Retry(attempts=3, first="1h", most="1h", within="9d")


def shop(stage: Stage, app: App, charge: Any, style: Style | None = None, **options: Any) -> Any:
    """Reserves, then charges under a key."""
    style = style or Style("def")

    def reserve(order: int) -> None:
        stage.do("reserve")

    def unreserve(order: int) -> None:
        stage.do("unreserve")

    def charged(order: int) -> str:
        stage.do("charge")
        return charge()

    undo = style.step(app, unreserve, repeat="safe")
    first = style.step(app, reserve, repeat="safe", undo=undo)
    second = style.step(app, charged, name="charge", repeat="keyed", **options)

    def steps(order: int) -> Any:
        yield first(order)
        return (yield second(order))

    return style.flow(app, steps)


def lone(stage: Stage, app: App, charge: Any, **options: Any) -> Any:
    """Charges first of all."""

    @app.step(name="charge", repeat="keyed", **options)
    def charged(order: int) -> str:
        stage.do("charge")
        return charge()

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return charged(order)

    return sync


def dies(app: App) -> Any:
    def charge() -> str:
        app.engine.dead = True  # type: ignore[attr-defined]
        return "lost"

    return charge


def raises(error: BaseException) -> Any:
    def charge() -> str:
        raise error

    return charge


def paid() -> str:
    return "paid"


# -- the provider's window -----------------------------------------------------------------------


@pytest.mark.parametrize(("later", "charges"), [(DAY / 2, 2), (3 * DAY, 1)])
def test_a_first_step_that_crashed_is_repeated_only_while_its_key_is_remembered(
    stage: Stage, later: float, charges: int
) -> None:
    app = stage.process()
    with pytest.raises(Died):
        lone(stage, app, dies(app))(1)
    stage.clock.advance(later)
    _call(lone(stage, stage.process(), paid))
    assert stage.effects["charge"] == charges
    assert stage.record("sync", "order:1").state == ("done" if charges == 2 else "review")


def test_the_window_is_not_counted_from_when_a_run_was_left_to_a_worker(stage: Stage) -> None:
    app = stage.process()
    lone(stage, app, dies(app)).start(1)
    stage.clock.advance(3 * DAY)
    with pytest.raises(Died):
        lone(stage, app_again := stage.process(), dies(app_again))(1)
    stage.lapse()
    assert lone(stage, stage.process(), paid)(1) == "paid"


@pytest.mark.parametrize(("later", "charges"), [(DAY / 2, 2), (3 * DAY, 1)])
def test_an_interrupted_step_is_repeated_only_while_its_key_is_remembered(
    stage: Stage, style: Style, later: float, charges: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        shop(stage, stage.process(), raises(KeyboardInterrupt()), style)(1)
    stage.clock.advance(later)
    _call(shop(stage, stage.process(), paid, style))
    assert stage.effects["charge"] == charges


def test_a_run_that_crashed_and_was_given_back_has_not_forgotten_it(stage: Stage) -> None:
    app = stage.process()
    with pytest.raises(Died):
        shop(stage, app, dies(app))(1)
    stage.lapse()
    draining = stage.process()
    draining.runtime.draining = True
    with pytest.raises(Waiting, match="given back"):
        shop(stage, draining, paid)(1)
    stage.clock.advance(3 * DAY)
    with pytest.raises(NeedsReview, match="forgets keys"):
        shop(stage, stage.process(), paid)(1)
    assert stage.effects["charge"] == 1


@pytest.mark.parametrize(("error", "charges"), [(TimeoutError(), 1), (NotDone("no"), 2)])
def test_a_retry_that_nobody_came_for_in_time_is_made_only_if_the_answer_was_no(
    stage: Stage, error: Exception, charges: int
) -> None:
    with pytest.raises(Waiting):
        lone(stage, stage.process(), raises(error), retry=HOURLY)(1)
    stage.clock.advance(3 * DAY)
    _call(lone(stage, stage.process(), paid, retry=HOURLY))
    assert stage.effects["charge"] == charges


@pytest.mark.parametrize(("first", "state"), [(TimeoutError(), "review"), (NotDone("no"), "failed")])
def test_a_clean_failure_does_not_answer_for_an_attempt_before_it(stage: Stage, first: Exception, state: str) -> None:
    errors = [first, NotDone("no"), NotDone("no")]

    def charge() -> str:
        raise errors.pop(0)

    app = stage.process()
    _call(shop(stage, app, charge, retry=HOURLY))
    for _ in range(2):
        stage.clock.advance(3_700)
        work(app)
    assert stage.record("sync", "order:1").state == state
    assert stage.effects["unreserve"] == (state == "failed")


# -- settling ------------------------------------------------------------------------------------


def test_the_destination_is_asked_only_when_the_failed_attempt_has_settled(stage: Stage) -> None:
    app, asked = stage.process(), []

    def find(order: int) -> Absent:
        asked.append(stage.clock.now())
        return Absent()

    @app.step(repeat=check(find, settling="60s"))
    def charge(order: int) -> None:
        stage.do("charge")
        stage.clock.advance(100)  # it took its time, and then
        if stage.effects["charge"] == 1:
            raise TimeoutError

    @app.flow(key="order:{order}", name="sync", lease="10m")
    def sync(order: int) -> None:
        charge(order)

    with pytest.raises(Waiting, match=f"at {moment(stage.clock.now() + 100 + 60)}"):
        sync(1)
    assert not asked
    stage.clock.advance(61)
    sync(1)
    assert len(asked) == 1
    assert stage.effects["charge"] == 2


def searching(stage: Stage, app: App, asked: list[float], end: Callable[[], None]) -> Any:
    """A check step without a time-out that takes 100 s, and then `end`s."""

    def find(order: int) -> Absent:
        asked.append(stage.clock.now())
        return Absent()

    @app.step(repeat=check(find, settling="60s"))
    def charge(order: int) -> None:
        stage.do("charge")
        stage.clock.advance(100)
        end()

    @app.flow(key="order:{order}", name="sync", lease="2m")
    def sync(order: int) -> None:
        charge(order)

    return sync


def test_a_holder_that_died_after_a_long_time_is_given_time_to_settle_too(stage: Stage) -> None:
    asked: list[float] = []
    with pytest.raises(Died):  # at the commit that would have recorded it
        searching(stage, stage.process(3), asked, lambda: None)(1)
    stage.clock.advance(21)
    app = stage.process()
    sync = searching(stage, app, asked, lambda: None)
    with pytest.raises(Waiting, match=f"at {moment(stage.clock.now() + 60)}"):
        sync(1)
    stage.clock.advance(59)
    with pytest.raises(Waiting):
        sync(1)
    assert not asked
    stage.clock.advance(1)
    sync(1)
    assert (len(asked), stage.effects["charge"]) == (1, 2)


def test_an_interrupted_attempt_is_given_time_to_settle_too(stage: Stage) -> None:
    asked: list[float] = []

    def interrupt() -> None:
        if stage.effects["charge"] == 1:
            raise KeyboardInterrupt

    sync = searching(stage, stage.process(), asked, interrupt)
    with pytest.raises(KeyboardInterrupt):
        sync(1)
    with pytest.raises(Waiting, match=f"at {moment(stage.clock.now() + 60)}"):
        sync(1)
    assert not asked
    stage.clock.advance(60)
    sync(1)
    assert (len(asked), stage.effects["charge"]) == (1, 2)


# -- undoing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "state"), [(TimeoutError(), "review"), (NotDone("no"), "failed")])
def test_a_cancelled_run_is_undone_unless_a_step_had_no_answer(
    stage: Stage, style: Style, error: Exception, state: str
) -> None:
    app = stage.process()
    with pytest.raises(Waiting):
        shop(stage, app, raises(error), style, retry=HOURLY)(1)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    assert stage.record("sync", "order:1").state == state
    assert stage.effects["unreserve"] == (state == "failed")


def test_a_cancelled_run_is_not_undone_around_what_a_crash_may_have_done(stage: Stage) -> None:
    app = stage.process()
    with pytest.raises(Died):
        shop(stage, app, dies(app))(1)
    stage.lapse()
    app = stage.process()
    shop(stage, app, paid)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    assert stage.record("sync", "order:1").state == "review"
    assert stage.effects == {"reserve": 1, "charge": 1}


def test_once_a_person_has_said_that_it_did_not_happen_it_is_undone(stage: Stage) -> None:
    app = stage.process()
    with pytest.raises(Waiting):
        shop(stage, app, raises(TimeoutError()), retry=HOURLY)(1)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    app.settle_run(app.attach(flow="sync", key="order:1").id, "did-not-happen", by="ann")
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"reserve": 1, "charge": 1, "unreserve": 1}


def reserving(stage: Stage, app: App, reserve: Any, *, undo: bool = True, **options: Any) -> Any:
    """Opens an account, then reserves: both may be repeated freely, and can be undone."""

    def undone(name: str) -> Any:
        @app.step(repeat="safe", name=name)
        def undone(order: int) -> None:
            stage.do(name)

        return undone

    @app.step(repeat="safe", undo=undone("close"))
    def open_account(order: int) -> None:
        stage.do("open")

    @app.step(repeat="safe", name="reserve", undo=undone("release") if undo else None, **options)
    def reserved(order: int) -> str:
        stage.do("reserve")
        return reserve()

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        open_account(order)
        return reserved(order)

    return sync


def test_what_had_no_answer_to_the_last_and_has_an_undo_is_not_passed_over(stage: Stage) -> None:
    """It may be in place: undone around, it would stay there for ever."""
    app = stage.process()
    sync = reserving(stage, app, raises(TimeoutError()), retry=Retry(attempts=2, first=0))
    with pytest.raises(NeedsReview, match="it must be undone, but the outcome of reserve is unknown"):
        sync(1)
    assert stage.effects == {"open": 1, "reserve": 2}
    app.settle_run("sync/order:1", "undo", by="ann", did=True, result="reserved")
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"open": 1, "reserve": 2, "release": 1, "close": 1}


@pytest.mark.parametrize(("error", "undo"), [(NotDone("no"), True), (ValueError(), True), (TimeoutError(), False)])
def test_what_was_answered_or_cannot_be_undone_fails_and_the_rest_is_undone(
    stage: Stage, error: Exception, undo: bool
) -> None:
    """The twins."""
    sync = reserving(stage, stage.process(), raises(error), undo=undo, retry=Retry(attempts=2, first=0))
    with pytest.raises(type(error)):
        sync(1)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"open": 1, "reserve": 2, "close": 1}


@pytest.mark.parametrize(("undo", "state"), [(True, "review"), (False, "failed")])
def test_a_cancelled_run_is_not_undone_around_an_undoable_step_in_doubt(stage: Stage, undo: bool, state: str) -> None:
    app = stage.process()
    with pytest.raises(Waiting):
        reserving(stage, app, raises(TimeoutError()), undo=undo, retry=HOURLY)(1)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    assert stage.record("sync", "order:1").state == state
    assert stage.effects["close"] == (state == "failed")


@pytest.mark.parametrize(("undo", "state"), [(True, "review"), (False, "failed")])
def test_nor_around_what_a_crash_may_have_done(stage: Stage, undo: bool, state: str) -> None:
    app = stage.process()
    with pytest.raises(Died):
        reserving(stage, app, dies(app), undo=undo)(1)
    stage.lapse()
    app = stage.process()
    reserving(stage, app, paid, undo=undo)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    assert stage.record("sync", "order:1").state == state
    assert stage.effects["close"] == (state == "failed")


@pytest.mark.parametrize("repeat", ["safe", "keyed"])
@pytest.mark.parametrize("way", ["gather", "each"])
def test_nor_around_any_of_several_that_were_begun_beside_each_other(stage: Stage, way: str, repeat: Any) -> None:
    def shop(app: App, begun: Callable[[], object]) -> Any:
        @app.step(repeat="safe", id="{n}")
        def release(n: int) -> None:
            stage.do(f"release {n}")

        @app.step(repeat=repeat, id="{n}", undo=release)
        def reserve(n: int) -> None:
            begun()
            stage.do(f"reserve {n}")

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> None:
            if way == "each":
                app.each([1, 2], reserve, concurrency=2)
            else:
                app.gather(lambda: reserve(1), lambda: reserve(2))

        return sync

    dying, both = stage.process(), Barrier(2)

    def die_together() -> None:
        both.wait(10)
        dying.engine.dead = True  # type: ignore[attr-defined]

    with pytest.raises(Died):
        shop(dying, die_together)(1)
    stage.lapse()
    app = stage.process()
    shop(app, paid)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    for n in (1, 2):
        assert stage.record("sync", "order:1").state == "review"
        app.settle_run("sync/order:1", "happened", by="ann", step=f"reserve[{n}]", result=None)
        work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"reserve 1": 1, "reserve 2": 1, "release 1": 1, "release 2": 1}


def test_a_killed_attempt_counts_once_however_often_the_step_is_put_off_since(stage: Stage) -> None:
    app = stage.process()
    with pytest.raises(Died):
        lone(stage, app, dies(app))(1)
    stage.lapse()
    app = stage.process()
    sync = lone(stage, app, raises(NotDone("no")), retry=Retry(attempts=6, first="1h", most="1h"))
    with pytest.raises(Waiting):
        sync(1)
    for _ in range(5):
        stage.clock.advance(3_601)
        work(app)
    assert stage.effects["charge"] == 6


# -- what the destination says -------------------------------------------------------------------


def checked(stage: Stage, app: App, charge: Any, look: Any, **options: Any) -> Any:
    """Reserves, then charges where it can be looked up."""

    @app.step(repeat="safe")
    def release(order: int) -> None:
        stage.do("release")

    @app.step(repeat="safe", undo=release)
    def reserve(order: int) -> None:
        stage.do("reserve")

    @app.step(repeat="safe")
    def refund(order: int) -> None:
        stage.do("refund")

    @app.step(name="charge", repeat=check(lambda order: look(), settling=0.0), undo=refund, **options)
    def charged(order: int) -> str:
        stage.do("charge")
        return charge()

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        reserve(order)
        return charged(order)

    return sync


@pytest.mark.parametrize("attempts", [1, 3])
def test_what_the_destination_has_not_seen_fails_at_last_and_the_rest_is_undone(stage: Stage, attempts: int) -> None:
    """It was asked about all the same, as if nobody knew."""
    app = stage.process()
    sync = checked(stage, app, raises(TimeoutError("no answer")), Absent, retry=Retry(attempts=attempts, first=0))
    with pytest.raises(StepFailed, match="charge failed: TimeoutError"):
        sync(1)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.entries("sync", "order:1")["charge"].state == "failed"
    assert stage.effects == {"reserve": 1, "charge": attempts, "release": 1}


def test_a_flow_that_goes_another_way_then_does_so_in_a_replay_too(stage: Stage) -> None:
    """What arrives there afterwards changes nothing about it."""
    app, arrived = stage.process(), [Absent()]

    @app.step(repeat=check(lambda order: arrived[-1], settling=0.0), retry=Retry(attempts=1))
    def charge(order: int) -> str:
        raise TimeoutError("no answer")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        try:
            paid = charge(order)
        except StepFailed:
            paid = "by invoice"
        app.wait_for("packed")
        return paid

    with pytest.raises(Waiting):
        sync(1)
    arrived.append(Happened("by card"))
    app.deliver_to(flow="sync", key="order:1", name="packed")
    assert sync(1) == "by invoice"


@pytest.mark.parametrize(
    ("found", "undone"), [(Absent(), {"release"}), (Happened("c1"), {"release", "refund"})], ids=["absent", "happened"]
)
def test_what_the_destination_tells_about_a_cancelled_run_needs_no_person(
    stage: Stage, found: Any, undone: set[str]
) -> None:
    app = stage.process()
    with pytest.raises(Died):
        checked(stage, app, dies(app), lambda: found)(1)
    stage.lapse()
    app = stage.process()
    checked(stage, app, paid, lambda: found)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"reserve": 1, "charge": 1, **dict.fromkeys(undone, 1)}


def test_what_the_destination_cannot_tell_does(stage: Stage) -> None:
    """The twin."""
    app = stage.process()
    with pytest.raises(Died):
        checked(stage, app, dies(app), Unknown)(1)
    stage.lapse()
    app = stage.process()
    checked(stage, app, paid, Unknown)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    assert stage.record("sync", "order:1").state == "review"
    assert stage.effects == {"reserve": 1, "charge": 1}


def _call(flow: Any) -> None:
    with suppress(NeedsReview, Waiting, StepFailed):
        flow(1)
