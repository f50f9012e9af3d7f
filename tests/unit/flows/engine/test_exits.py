"""How runs end, stop and go on: retries that last, sleep, undo, cancellation, interrupts, zombies, lost replies."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.flows.resuming import resume
from tests.unit.flows.stage import Died, Stage
from twiceproof import (
    App,
    ClaimLost,
    Duplicate,
    InProgress,
    Misuse,
    NeedsReview,
    NotDone,
    PriorFailure,
    Retry,
    StepFailed,
    Waiting,
)
from twiceproof.claims.queries import evidence_of
from twiceproof.clock import moment
from twiceproof.operations import block

if TYPE_CHECKING:
    from nowhere import Nowhere

ONCE = Retry(attempts=1)


# -- retries ---------------------------------------------------------------------------------------


def flaky(stage: Stage, app: App, retry: Retry, error: Exception, times: int) -> Any:
    @app.step(repeat="safe", retry=retry)
    def pay(order: int) -> str:
        stage.do("pay")
        if stage.effects["pay"] <= times:
            raise error
        return "paid"

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        return pay(order)

    return sync


def test_a_short_wait_for_a_retry_is_spent_in_place(stage: Stage) -> None:
    assert flaky(stage, stage.process(), Retry(first=1.0), NotDone("no"), 1)(1) == "paid"
    assert 0.5 <= stage.clock.pauses[0] <= 1.0


def test_a_long_wait_for_a_retry_parks_the_run_and_lasts_over_restarts(stage: Stage) -> None:
    with pytest.raises(Waiting, match=r"pay will be tried again at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC") as caught:
        flaky(stage, stage.process(), Retry(first=100.0), NotDone("no"), 1)(1)
    assert caught.value.handle.state == "waiting"
    again = flaky(stage, stage.process(), Retry(first=100.0), NotDone("no"), 1)
    with pytest.raises(Waiting):
        again(1)
    assert stage.effects == {"pay": 1}
    stage.clock.advance(101)
    assert again(1) == "paid"
    assert stage.entries("sync", "order:1")["pay"].note.starts == 2


def test_the_other_sides_retry_after_is_respected(stage: Stage) -> None:
    with pytest.raises(Waiting):
        flaky(stage, stage.process(), Retry(first=0.1), NotDone("no", retry_after=60), 1)(1)
    due_at = stage.record("sync", "order:1").due_at
    assert due_at == pytest.approx(stage.clock.wall + 60)


def test_attempts_are_counted_and_end_in_a_failure(stage: Stage) -> None:
    flow = flaky(stage, stage.process(), Retry(attempts=3, first=0.01), NotDone("no"), 99)
    with pytest.raises(NotDone, match="no"):
        flow(1)
    assert stage.effects == {"pay": 3}
    with pytest.raises(PriorFailure, match="pay: no"):
        flow(1)


def test_total_time_is_limited_too(stage: Stage) -> None:
    with pytest.raises(NotDone):
        flaky(stage, stage.process(), Retry(attempts=99, first=2.0, within=5.0), NotDone("no"), 99)(1)
    assert stage.effects["pay"] < 5


# -- here, there, twice ------------------------------------------------------------------------------


def one_step(stage: Stage, app: App, **options: Any) -> Any:
    @app.step(repeat="safe")
    def pay(order: int) -> str:
        stage.do("pay")
        return "paid"

    @app.flow(key="order:{order}", **options)
    def sync(order: int) -> str:
        return pay(order)

    return sync


def test_a_started_run_is_left_to_a_worker(stage: Stage) -> None:
    app = stage.process()
    handle = one_step(stage, app).start(1)
    assert (handle.state, dict(stage.effects)) == ("queued", {})
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.0)
    assert resume(app) == 1
    assert (handle.state, handle.result(timeout=0.0)) == ("done", "paid")


def test_a_second_start_is_the_first_ones_handle(stage: Stage) -> None:
    app = stage.process()
    flow = one_step(stage, app)
    assert flow.start(1).id == flow.start(1).id
    assert resume(app) == 1
    assert flow.start(1).result(timeout=0.0) == "paid"
    assert resume(app) == 0
    assert stage.effects == {"pay": 1}


def test_a_run_is_found_from_another_process_by_id_and_by_key(stage: Stage) -> None:
    handle = one_step(stage, stage.process()).start(1)
    other = stage.process()
    assert other.attach(handle.id).state == "queued"
    assert other.attach(flow="sync", key="order:1").id == handle.id
    assert other.attach(flow="sync", key="order:2").state == ""
    with pytest.raises(Misuse, match="not the id of a run"):
        other.attach("run_nonsense")


def test_on_an_event_loop_a_run_of_any_process_is_attached_to_by_awaiting(stage: Stage) -> None:
    app, other = stage.process(), stage.process()

    @app.flow(key="order:{order}")
    async def sync(order: int) -> str:
        return "done"

    async def look() -> None:
        run = (await sync.start(1)).id
        handle = await other.attach(run)
        assert handle.id == run
        assert await handle.state == "queued"
        assert await handle.cancel("ann") == "failed"
        with pytest.raises(PriorFailure, match="cancelled by ann"):
            await handle.result(timeout=0.0)

    asyncio.run(look())
    assert other.attach(flow="sync", key="order:1").state == "failed"  # and elsewhere it blocks, whatever the flow is


def test_a_direct_call_resumes_a_lapsed_run_and_leaves_a_live_one_alone(stage: Stage) -> None:
    with pytest.raises(Died):
        one_step(stage, stage.process(2))(1)
    flow = one_step(stage, stage.process())
    with pytest.raises(InProgress):
        flow(1)
    stage.lapse()
    assert flow(1) == "paid"


def test_duplicates_can_be_rejected(stage: Stage) -> None:
    flow = one_step(stage, stage.process(), on_duplicate="reject")
    assert flow(1) == "paid"
    with pytest.raises(Duplicate):
        flow(1)


def test_a_run_of_another_version_is_left_alone(stage: Stage) -> None:
    old = stage.process()
    one_step(stage, old, version="1").start(1)
    new = stage.process()
    flow = one_step(stage, new, version="2")
    assert resume(new) == 0
    with pytest.raises(Waiting, match="version 1"):
        flow(1)
    accepting = stage.process()
    one_step(stage, accepting, version="2", accepts=("1",))
    assert resume(accepting) == 1
    assert stage.record("sync", "order:1").state == "done"


# -- sleep ------------------------------------------------------------------------------------------


def sleepy(stage: Stage, app: App) -> Any:
    @app.step(repeat="safe")
    def mail(order: int, nth: int) -> None:
        stage.do(f"mail {nth}")

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        mail(order, 1)
        app.sleep("3d")
        mail(order, 2)
        return "mailed"

    return sync


def test_a_sleeping_run_holds_nothing_and_goes_on_when_its_time_has_come(stage: Stage) -> None:
    with pytest.raises(Waiting, match=f"sleeps until {moment(stage.clock.now() + 3 * 86_400)}"):
        sleepy(stage, stage.process())(1)
    record = stage.record("sync", "order:1")
    assert (record.state, record.lease_until) == ("waiting", None)
    other = stage.process()
    sleepy(stage, other)
    assert resume(other) == 0
    stage.clock.advance(3 * 86_400)
    assert resume(other) == 1
    assert stage.effects == {"mail 1": 1, "mail 2": 1}
    assert stage.record("sync", "order:1").state == "done"


def test_a_swallowed_wait_is_found_out(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        try:
            app.sleep("3d")
        except BaseException:  # noqa: BLE001 - that is the point
            app.sleep("1d")

    with pytest.raises(NeedsReview, match="let BaseException pass"):
        sync(1)


def test_a_wait_that_was_swallowed_at_the_end_is_a_wait_all_the_same(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        try:
            app.sleep("3d")
        except BaseException:  # noqa: BLE001 - that is the point
            return

    with pytest.raises(Waiting):
        sync(1)


def test_waits_belong_to_the_body_of_a_flow(stage: Stage) -> None:
    app = stage.process()
    with pytest.raises(Misuse, match="called from no flow"):
        app.sleep(1)


# -- undo -------------------------------------------------------------------------------------------


def saga(stage: Stage, app: App, fail: BaseException | None = None) -> Any:
    @app.step(repeat="safe")
    def release(sku: str) -> None:
        stage.do(f"release {sku}")

    def refund(result: dict[str, str]) -> None:
        stage.do(f"refund {result['id']}")

    @app.step(repeat="safe", undo=release)
    def reserve(sku: str) -> None:
        stage.do(f"reserve {sku}")

    @app.step(repeat="keyed", undo=refund)
    def charge(order: int) -> dict[str, str]:
        stage.do("charge")
        return {"id": "ch_1"}

    @app.step(repeat="safe", retry=Retry(attempts=3, first=0.01))
    def ship(order: int) -> None:
        if fail is not None:
            raise fail
        stage.do("ship")

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        reserve("a")
        charge(order)
        ship(order)

    return sync


def test_a_failed_run_is_undone_in_reverse_once_each(stage: Stage) -> None:
    flow = saga(stage, stage.process(), NotDone("no lorry"))
    with pytest.raises(NotDone, match="no lorry"):
        flow(1)
    assert list(stage.effects) == ["reserve a", "charge", "refund ch_1", "release a"]
    assert set(stage.effects.values()) == {1}
    with pytest.raises(PriorFailure):
        flow(1)
    assert set(stage.effects.values()) == {1}


def test_a_run_that_succeeds_is_not_undone(stage: Stage) -> None:
    saga(stage, stage.process())(1)
    assert list(stage.effects) == ["reserve a", "charge", "ship"]


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("commits", range(1, 11))
def test_undoing_survives_a_crash_at_every_commit(stage: Stage, commits: int, landed: bool) -> None:
    """The refund is declared never to be repeated: cut off in it, a person is asked, and nothing is undone twice."""
    with pytest.raises((Died, NotDone)):
        saga(stage, stage.process(commits, landed=landed), NotDone("no lorry"))(1)
    stage.lapse()
    with pytest.raises((NotDone, StepFailed, PriorFailure, NeedsReview)):
        saga(stage, stage.process(), NotDone("no lorry"))(1)
    state = stage.record("sync", "order:1").state
    assert stage.effects["charge"] <= 2  # keyed: the provider tells them apart
    if state == "failed":
        assert stage.effects["refund ch_1"] == 1
        assert stage.effects["release a"] >= 1
        return
    assert state == "review"
    (unknown,) = [entry.name for entry in stage.entries("sync", "order:1").values() if entry.state == "unknown"]
    # Killed about the refund, or in the third of three attempts to ship: then nothing is undone yet.
    assert (unknown, stage.effects["refund ch_1"]) in [("undo:charge", 0), ("undo:charge", 1), ("ship", 0)]


def test_nothing_is_undone_while_an_outcome_is_unknown(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe", undo=lambda: stage.do("undo"), name="first")
    def first(order: int) -> None:
        stage.do("first")

    @app.step
    def second(order: int) -> None:
        raise TimeoutError

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        first(order)
        second(order)

    with pytest.raises(NeedsReview):
        sync(1)
    assert stage.effects == {"first": 1}


def test_a_run_that_was_undone_is_not_tried_again(stage: Stage) -> None:
    flow = saga(stage, stage.process(), NotDone("no lorry"))
    with pytest.raises(NotDone):
        flow(1)
    with pytest.raises(Misuse, match="was undone"):
        flow.retry(1)


# -- cancel -----------------------------------------------------------------------------------------


def test_a_run_that_has_not_begun_is_cancelled_at_once(stage: Stage) -> None:
    app = stage.process()
    handle = one_step(stage, app).start(1)
    assert handle.cancel(by="ann") == "failed"
    assert resume(app) == 0
    with pytest.raises(PriorFailure, match="cancelled by ann"):
        handle.result(timeout=0.0)


def test_a_waiting_run_that_is_cancelled_is_undone_by_whoever_takes_it(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe", undo=lambda order: stage.do("undo"), name="first")
    def first(order: int) -> None:
        stage.do("first")

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        first(order)
        app.sleep("3d")

    with pytest.raises(Waiting) as caught:
        sync(1)
    assert caught.value.handle.cancel(by="ann") == "queued"
    assert resume(app) == 1
    assert stage.effects == {"first": 1, "undo": 1}
    assert caught.value.handle.state == "failed"


def test_a_running_run_that_is_cancelled_stops_before_its_next_step(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe", undo=lambda order: stage.do("undo"), name="first")
    def first(order: int) -> None:
        stage.do("first")
        stage.process().attach(flow="sync", key="order:1").cancel(by="ann")

    @app.step(repeat="safe")
    def second(order: int) -> None:
        stage.do("second")

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        first(order)
        second(order)

    with pytest.raises(Exception, match="cancelled by ann"):
        sync(1)
    assert stage.effects == {"first": 1, "undo": 1}
    assert stage.record("sync", "order:1").state == "failed"


# -- zombies and lost replies ------------------------------------------------------------------------


def test_a_holder_that_lost_its_run_stops_and_leaves_evidence(stage: Stage) -> None:
    old, new = stage.process(), stage.process()
    other = one_step(stage, new)

    @old.step(repeat="safe")
    def pay(order: int) -> str:
        stage.do("old pay")
        stage.lapse()
        assert other(order) == "paid"
        return "old"

    @old.step(repeat="safe")
    def later(order: int) -> None:
        stage.do("later")

    @old.flow(key="order:{order}")
    def sync(order: int) -> None:
        pay(order)
        later(order)

    with pytest.raises(ClaimLost):
        sync(1)
    assert stage.effects == {"old pay": 1, "pay": 1}
    (found,) = block(evidence_of(new.store, "default/sync/order:1"))
    assert (found.step, bytes(found.result)) == ("pay", b'"old"')


@pytest.mark.parametrize("commit", range(1, 6))
@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
def test_a_lost_reply_or_request_changes_nothing(stage: Stage, commit: int, fault: str) -> None:
    app = stage.process()
    engine = app.engine  # type: ignore[attr-defined]
    land = engine.commit

    def losing(batches: Any) -> Any:
        if engine.commits + 1 == commit and not engine._faults:
            getattr(engine, fault)()
        return land(batches)

    app.store.engine.commit = losing  # type: ignore[attr-defined,method-assign]
    saga(stage, app)(1)
    assert stage.effects == {"reserve a": 1, "charge": 1, "ship": 1}
    assert stage.record("sync", "order:1").state == "done"


def test_an_interrupted_call_gives_its_run_back(stage: Stage) -> None:
    app = stage.process()
    stops = [KeyboardInterrupt()]

    @app.step(repeat="safe")
    def pay(order: int) -> str:
        if stops:
            raise stops.pop()
        return "paid"

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        return pay(order)

    with pytest.raises(KeyboardInterrupt):
        sync(1)
    assert stage.record("sync", "order:1").state == "queued"
    assert sync(1) == "paid"


def test_an_interrupt_in_a_never_step_goes_to_a_person(stage: Stage) -> None:
    app = stage.process()

    @app.step
    def pay(order: int) -> str:
        raise KeyboardInterrupt

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        return pay(order)

    with pytest.raises(KeyboardInterrupt):
        sync(1)
    with pytest.raises(NeedsReview, match="KeyboardInterrupt while pay ran"):
        sync(1)


def test_a_cancelled_task_gives_its_run_back(stage: Stage) -> None:
    app = stage.process()
    reached = []

    @app.step(repeat="safe")
    async def pay(order: int) -> str:
        reached.append(order)
        if len(reached) == 1:
            await asyncio.Event().wait()
        return "paid"

    @app.flow(key="order:{order}")
    async def sync(order: int) -> str:
        return await pay(order)

    async def main() -> str:
        task = asyncio.create_task(sync(1))
        while not reached:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await sync(1)

    assert asyncio.run(main()) == "paid"


@pytest.mark.parametrize("poison", [float("nan"), "\ud800", object()], ids=["nan", "surrogate", "object"])
def test_poison_arguments_are_refused_before_anything_is_written(stage: Stage, poison: Any) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int, extra: Any) -> None: ...

    with pytest.raises((Misuse, ValueError)):
        sync(1, poison)
    assert app.engine.commits == 0  # type: ignore[attr-defined]


def test_a_number_that_is_none_is_refused_also_where_the_fingerprint_ignores_it(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}", ignore=("extra",))
    def sync(order: int, extra: Any) -> None: ...

    with pytest.raises(Misuse, match="no JSON form"):
        sync(1, float("nan"))
    assert sync(1, None) is None


def test_a_step_cannot_be_called_twice_at_once_without_an_id(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    async def pay(order: int) -> None:
        await asyncio.sleep(0.01)

    @app.flow(key="order:{order}")
    async def sync(order: int) -> None:
        await asyncio.gather(pay(1), pay(2))

    with pytest.raises(Misuse, match="twice at once"):
        asyncio.run(sync(1))


# -- forgotten and begun anew ----------------------------------------------------------------------


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("commit", range(1, 7))
def test_a_run_after_an_expired_one_never_takes_its_steps_for_its_own(stage: Stage, commit: int, landed: bool) -> None:
    """Also when the process that begins it anew is killed in between."""
    assert one_step(stage, stage.process(), keep="1d")(1) == "paid"
    stage.clock.advance(86_401)
    with pytest.raises(Died):
        one_step(stage, stage.process(commit, landed=landed), keep="1d")(1)
        raise Died
    stage.lapse()
    assert one_step(stage, stage.process(), keep="1d")(1) == "paid"
    assert stage.effects["pay"] in (2, 3)  # it is safe: cut off, it is done again


def test_a_start_after_an_expired_run_begins_anew(stage: Stage) -> None:
    app = stage.process()
    flow = one_step(stage, app, keep="1d")
    flow(1)
    stage.clock.advance(86_401)
    assert flow.start(1).state == "queued"
    assert resume(app) == 1
    assert stage.effects["pay"] == 2


def test_a_run_in_review_says_how_to_look_at_it(stage: Stage) -> None:
    app = stage.process()

    @app.step
    def pay(order: int) -> None:
        raise TimeoutError

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        pay(order)

    for _ in range(2):
        with pytest.raises(NeedsReview, match="twiceproof review show run_"):
            sync(1)


# -- what is no flow ---------------------------------------------------------------------------------


def test_a_generator_is_refused_when_it_is_declared(stage: Stage) -> None:
    app = stage.process()
    with pytest.raises(Misuse, match="is a generator"):

        @app.flow(key="order:{order}")
        def sync(order: int) -> Any:
            yield order


def test_a_def_that_returns_work_not_yet_begun_is_not_recorded_as_done(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    async def call(order: int) -> None:
        stage.do("call")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        return call(order)

    with pytest.raises(NotDone, match="make it an `async def`"):
        sync(1)
    assert stage.record("sync", "order:1").state == "failed"


# -- arguments that do not fit ---------------------------------------------------------------------


def test_a_start_whose_arguments_do_not_fit_is_refused_and_takes_no_key(stage: Stage) -> None:
    """Queued, it would fail, and the corrected start would be refused as another payload."""

    def flow_of(app: App) -> Any:
        @app.flow(key="order:{order}")
        def buy(order: int, total: int) -> int:
            return total

        return buy

    app = stage.process()
    buy = flow_of(app)
    with pytest.raises(Misuse, match="buy declares total: int"):
        buy.start(1, "70")
    assert buy.start(1, 70).state == "queued"
    resume(app)
    assert buy(1, 70) == 70


def test_an_awaited_start_is_refused_in_the_same_way(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    async def buy(order: int, total: int) -> int:
        return total

    async def both() -> str:
        with pytest.raises(Misuse, match="buy declares total: int"):
            await buy.start(1, "70")
        return await (await buy.start(1, 70)).state

    assert asyncio.run(both()) == "queued"


def test_a_type_that_exists_only_for_type_checkers_hides_no_other(stage: Stage) -> None:
    app, seen = stage.process(), []

    @app.flow(key="order:{order}")
    def buy(order: int, total: Decimal, client: Nowhere | None = None) -> None:
        seen.append(total)

    buy(1, Decimal("1.10"))
    assert seen == [Decimal("1.10")]


def test_a_run_from_before_the_annotation_changed_is_still_answered(stage: Stage) -> None:
    before = stage.process()

    @before.flow(key="order:{order}", name="buy")
    def old(order: int, total: str) -> str:
        return total

    assert old(1, "70") == "70"
    now = stage.process()

    @now.flow(key="order:{order}", name="buy")
    def new(order: int, total: int) -> str:
        return str(total)

    assert new.start(1, "70").result(timeout=0.0) == "70"


# -- a loop that is blocked -------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["done", "waiting"])
def test_a_run_that_ended_is_not_called_lost_while_its_loop_is_blocked(
    stage: Stage, ends: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last write has landed, and it could not hear of it yet: the heartbeat finds its own run's end."""
    app = stage.process()
    landed, blocked = threading.Event(), threading.Event()
    commit = stage.engine.commit

    def slow_to_answer(batches: Any) -> Any:
        outcomes = commit(batches)
        writes = [write for batch in batches for write in batch.writes]
        if any(getattr(write, "state", "") == ends and write.at.kind == "run" for write in writes):
            landed.set()
            assert blocked.wait(10)
        return outcomes

    monkeypatch.setattr(stage.engine, "commit", slow_to_answer)

    @app.flow(key="order:{order}")
    async def sync(order: int) -> str:
        return await app.wait_for("paid") if ends == "waiting" else "done"

    async def blocks_the_loop() -> None:
        while not landed.is_set():
            await asyncio.sleep(0)
        blocked.set()
        stage.clock.advance(11)  # past a third of the lease: it is due to be renewed
        app._heartbeat.beat()

    async def both() -> Any:
        return await asyncio.gather(sync(1), blocks_the_loop(), return_exceptions=True)

    with caplog.at_level("WARNING", "twiceproof"):
        asyncio.run(asyncio.wait_for(both(), 20))
    assert stage.record("sync", "order:1").state == ends
    assert "lost the claim" not in caplog.text
