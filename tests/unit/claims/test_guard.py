"""The guard: of all calls with one key one does the work, and the others get its result, or are told why not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from twiceproof import (
    App,
    ClaimLost,
    Duplicate,
    InProgress,
    Misuse,
    NeedsReview,
    NotDone,
    PayloadMismatch,
    PriorFailure,
    StoreUnavailable,
    StoreUnsafe,
)
from twiceproof.claims.claim import Busy, Done, Failed, InReview
from twiceproof.claims.queries import evidence_of
from twiceproof.operations import block


class Work:
    """Counts its runs; does what it is told, once each, and then returns the number of the run."""

    def __init__(self, *orders: Callable[[], Any] | BaseException) -> None:
        self.runs = 0
        self.orders = list(orders)

    def __call__(self, order: int) -> int:
        self.runs += 1
        what = self.orders.pop(0) if self.orders else None
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            what()
        return self.runs


def guard(style: Any, app: App, work: Work, **options: Any) -> Any:
    def pay(order: int) -> int:
        return work(order)

    return style.once(app, pay, **options)


def test_a_duplicate_gets_what_the_first_returned(app: App, style: Any) -> None:
    work = Work()
    pay = guard(style, app, work)
    assert [pay(1), pay(1), pay(2), pay(1)] == [1, 1, 2, 1]


def test_a_duplicate_is_rejected_where_that_was_asked_for(app: App, style: Any) -> None:
    work = Work()
    pay = guard(style, app, work, on_duplicate="reject")
    assert pay(1) == 1
    with pytest.raises(Duplicate) as told:
        pay(1)
    assert (told.value.result, told.value.key, told.value.operation, work.runs) == (1, "order:1", "pay", 1)


def test_fifty_threads_with_one_key_do_the_work_once(tmp_path: Any) -> None:
    with App(f"sqlite:///{tmp_path}/race.db") as app:
        work, barrier = Work(), threading.Barrier(50, timeout=10)

        @app.once(key="order:{order}", on_duplicate="wait")
        def pay(order: int) -> int:
            return work(order)

        def call() -> int:
            barrier.wait()
            return pay(1)

        with ThreadPoolExecutor(50) as pool:
            answers = [future.result() for future in [pool.submit(call) for _ in range(50)]]
    assert (set(answers), work.runs) == ({1}, 1)


def test_fifty_tasks_with_one_key_do_the_work_once(tmp_path: Any) -> None:
    with App(f"sqlite:///{tmp_path}/race.db") as app:
        work = Work()

        @app.once(key="order:{order}", on_duplicate="wait")
        async def pay(order: int) -> int:
            await asyncio.sleep(0)
            return work(order)

        async def all_of_them() -> list[int]:
            return await asyncio.gather(*(pay(1) for _ in range(50)))

        answers = asyncio.run(all_of_them())
    assert (set(answers), work.runs) == ({1}, 1)


def test_fifty_threads_and_fifty_tasks_at_once_do_the_work_once(app: App) -> None:
    """A `def` and an `async def` share an operation, by its name, in two apps on one store: one key is one intent."""
    work, barrier = Work(), threading.Barrier(51, timeout=10)
    other = App(app.store, clock=app.clock)

    @app.once(key="order:{order}", name="pay", on_duplicate="wait")
    def pay(order: int) -> int:
        return work(order)

    @other.once(key="order:{order}", name="pay", on_duplicate="wait")
    async def paying(order: int) -> int:
        await asyncio.sleep(0)
        return work(order)

    def in_a_thread() -> int:
        barrier.wait()
        return pay(1)

    async def in_tasks() -> list[int]:
        await asyncio.to_thread(barrier.wait)
        return await asyncio.gather(*(paying(1) for _ in range(50)))

    with ThreadPoolExecutor(50) as pool:
        threads = [pool.submit(in_a_thread) for _ in range(50)]
        answers = [*asyncio.run(in_tasks()), *(future.result(10) for future in threads)]
    other._heartbeat.stop()
    assert (answers, work.runs) == ([1] * 100, 1)


def test_a_blocking_call_on_the_loops_own_thread_does_not_wait_for_the_loop(app: App) -> None:
    """One task's write has not left the loop yet when another task blocks the loop with a write of its own."""

    @app.once(key="order:{order}")
    async def awaited(order: int) -> int:
        return 1

    @app.once(key="order:{order}")
    def blocked(order: int) -> int:
        return 2

    async def mixed(order: int) -> int:
        return blocked(order)

    async def both() -> list[int]:
        return await asyncio.gather(awaited(1), mixed(1), awaited(2), mixed(2))

    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(asyncio.run(both())), daemon=True)
    thread.start()
    thread.join(10)
    assert result == [[1, 2, 1, 2]]


def test_while_the_first_runs_others_are_told_who_and_how_long(app: App, clock: Any, style: Any) -> None:
    told: list[InProgress] = []

    def meanwhile() -> None:
        clock.advance(5)
        with pytest.raises(InProgress) as caught:
            _elsewhere(lambda: pay(1))
        told.append(caught.value)

    work = Work(meanwhile)
    pay = guard(style, app, work, lease="20s")
    assert pay(1) == 1
    assert (told[0].retry_after, told[0].key, work.runs) == (15.0, "order:1", 1)
    assert told[0].owner in str(told[0]) and "another 15.0 s" in str(told[0])


@pytest.mark.parametrize("policy", ["return_prior", "reject"])
def test_a_rejected_duplicate_does_no_harm_to_the_first(app: App, style: Any, policy: str) -> None:
    def meanwhile() -> None:
        for _ in range(3):
            with pytest.raises(InProgress):
                _elsewhere(lambda: pay(1))

    pay = guard(style, app, Work(meanwhile), on_duplicate=policy)
    assert pay(1) == 1
    assert isinstance(pay.look(1), Done)


def _elsewhere(call: Callable[[], Any]) -> Any:
    """Another thread is another caller; inside the work's own context the same key would be part of it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_a_waiting_duplicate_gets_the_result_when_the_first_is_done(app: App) -> None:
    began, go = threading.Event(), threading.Event()

    @app.once(key="order:{order}", on_duplicate="wait")
    def pay(order: int) -> str:
        began.set()
        go.wait(10)
        return "paid"

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(pay, 1)
        began.wait(10)
        waiting = [pool.submit(pay, 1) for _ in range(2)]
        assert not any(future.done() for future in waiting)
        go.set()
        assert [future.result(10) for future in (first, *waiting)] == ["paid"] * 3


def test_a_waiting_duplicate_takes_over_when_the_first_says_nothing_happened(app: App) -> None:
    began, go = threading.Event(), threading.Event()
    runs: list[int] = []

    @app.once(key="order:{order}", on_duplicate="wait")
    def pay(order: int) -> int:
        runs.append(order)
        if len(runs) == 1:
            began.set()
            go.wait(10)
            raise NotDone("refused")
        return len(runs)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pay, 1)
        began.wait(10)
        second = pool.submit(pay, 1)
        go.set()
        with pytest.raises(NotDone):
            first.result(10)
        assert second.result(10) == 2


def test_the_same_key_with_another_payload_is_refused_and_the_same_is_replayed(app: App, style: Any) -> None:
    def pay(order: int, amount: int) -> int:
        return amount

    guarded = style.once(app, pay)
    assert guarded(1, 10) == 10
    with pytest.raises(PayloadMismatch) as told:
        guarded(1, 11)
    assert told.value.found != told.value.asked
    assert (told.value.state, told.value.run[:4]) == ("done", "run_")
    assert guarded(1, 10) == 10


# -- failures ------------------------------------------------------------------------------------


def test_not_done_lets_the_next_call_run_as_attempt_two(app: App, style: Any) -> None:
    work = Work(NotDone("card refused"))
    pay = guard(style, app, work)
    with pytest.raises(NotDone, match="card refused"):
        pay(1)
    found = pay.look(1)
    assert isinstance(found, Failed) and found.retryable
    assert pay(1) == 2
    assert _claim(app).attempt == 2


def _claim(app: App) -> Any:
    from twiceproof.claims.claim import address_of, claim_of

    return claim_of(app.store.read(address_of("default", "pay", "order:1")).block().record)


AMBIGUOUS = [
    TimeoutError("slow"),
    ConnectionResetError("cut"),
    BrokenPipeError(),
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(1),
]


@pytest.mark.parametrize("error", AMBIGUOUS, ids=lambda error: type(error).__name__)
def test_an_unknown_outcome_waits_for_a_person(app: App, error: BaseException) -> None:
    work = Work(error)

    @app.once(key="order:{order}")
    def pay(order: int) -> int:
        return work(order)

    with pytest.raises(NeedsReview if isinstance(error, Exception) else type(error)):
        pay(1)
    assert isinstance(pay.look(1), InReview)
    with pytest.raises(NeedsReview, match=r"twiceproof( --store \S+)? claims show pay order:1$") as told:
        pay(1)
    assert type(error).__name__ in told.value.reason
    with pytest.raises(NeedsReview):
        pay.retry(1)
    assert work.runs == 1


@pytest.mark.parametrize("error", AMBIGUOUS, ids=lambda error: type(error).__name__)
def test_an_unknown_outcome_of_what_is_safe_is_tried_again(app: App, error: BaseException) -> None:
    work = Work(error)

    @app.once(key="order:{order}", repeat="safe")
    def pay(order: int) -> int:
        return work(order)

    with pytest.raises(type(error)):
        pay(1)
    assert pay(1) == 2


def test_a_refusal_that_no_retry_cures_fails_for_good_until_a_person_says_retry(app: App, style: Any) -> None:
    work = Work(NotDone("no such customer", final=True))
    pay = guard(style, app, work)
    with pytest.raises(NotDone, match="no such customer"):
        pay(1)
    with pytest.raises(PriorFailure, match=r"failed before with NotDone: no such customer; call \.retry") as told:
        pay(1)
    assert (told.value.fault.type, told.value.error) == ("NotDone", "NotDone: no such customer")
    assert work.runs == 1
    assert (pay.retry(1), pay(1), work.runs) == (2, 2, 2)


def test_an_error_that_nobody_knows_leaves_the_outcome_unknown(app: App, style: Any) -> None:
    """The client's own, after it has sent: nobody can tell it from a bug before anything was done."""
    error = ValueError("cannot parse the receipt")
    work = Work(error)
    pay = guard(style, app, work)
    with pytest.raises(NeedsReview) as told:
        pay(1)
    assert told.value.__cause__ is error
    assert told.value.reason == "ValueError while it ran: whether its work was done is unknown"
    assert "(ValueError: cannot parse the receipt). Look at it with: twiceproof " in str(told.value)
    assert "\n" not in str(told.value)
    for call in (pay, pay.retry):
        with pytest.raises(NeedsReview):
            call(1)
    assert work.runs == 1
    app.settle("pay", "order:1", "did-not-happen", by="ann")
    assert (pay(1), work.runs) == (2, 2)


def test_errors_that_a_function_declares_to_mean_not_done_fail_cleanly(app: App, style: Any) -> None:
    class Declined(Exception): ...

    work = Work(Declined("no"), KeyError("amount"), ValueError("what?"))
    pay = guard(style, app, work, not_done=(Declined, LookupError))
    for error in (Declined, KeyError):
        with pytest.raises(error):
            pay(1)
    with pytest.raises(NeedsReview):
        pay(1)
    assert work.runs == 3


@pytest.mark.parametrize("form", ["verdict", "not_done"])
def test_what_the_app_says_about_an_error_counts_for_guarded_functions(app: App, style: Any, form: str) -> None:
    class Declined(Exception): ...

    work = Work(Declined("no"))
    pay = guard(style, app, work)
    if form == "verdict":
        app.classify(Declined, "clean")
    else:
        app.classify(not_done=Declined)
    with pytest.raises(Declined):
        pay(1)
    assert pay(1) == 2


def test_what_is_no_exception_cannot_be_declared_to_mean_not_done(app: App) -> None:
    for given in ("ValueError", (ValueError, 3), KeyboardInterrupt):
        with pytest.raises(Misuse):
            app.once(key="order:{order}", not_done=given)(lambda order: order)  # type: ignore[arg-type]
        with pytest.raises(Misuse):
            app.classify(not_done=given)  # type: ignore[call-overload]
    with pytest.raises(Misuse, match="not_done="):
        app.classify()  # type: ignore[call-overload]


def test_a_bug_in_what_is_safe_is_simply_tried_again(app: App, style: Any) -> None:
    pay = guard(style, app, Work(ValueError("no")), repeat="safe")
    with pytest.raises(ValueError):
        pay(1)
    assert pay(1) == 2


def test_a_retry_of_what_is_done_is_a_duplicate(app: App, style: Any) -> None:
    work = Work()
    pay = guard(style, app, work)
    assert (pay(1), pay.retry(1), work.runs) == (1, 1, 1)


def test_on_failure_release_frees_the_key(app: App, style: Any) -> None:
    pay = guard(style, app, Work(NotDone("no", final=True)), on_failure="release")
    with pytest.raises(NotDone):
        pay(1)
    assert pay.look(1) is None
    assert pay(1) == 2


@pytest.mark.parametrize("error", [TimeoutError("slow"), ValueError("what?")], ids=["no answer", "unknown"])
def test_on_failure_release_never_frees_what_may_have_happened(app: App, style: Any, error: Exception) -> None:
    work = Work(error)
    pay = guard(style, app, work, on_failure="release")
    for _ in range(2):
        with pytest.raises(NeedsReview):
            pay(1)
    assert work.runs == 1


def test_the_users_own_error_is_raised_with_its_own_traceback(app: App, style: Any) -> None:
    error = NotDone("mine")
    pay = guard(style, app, Work(error))
    with pytest.raises(NotDone) as caught:
        pay(1)
    assert caught.value is error
    assert "__call__" in [entry.name for entry in caught.traceback]


class Refused(Exception):
    """Somebody's own: our own errors are one line from the beginning."""


@pytest.mark.parametrize("message", ["half \ud800 a pair", "a \0 in it", "two\nlines", "x" * 10_000, ""])
def test_an_error_with_a_strange_text_is_recorded_and_raised_as_it_is(app: App, style: Any, message: str) -> None:
    error = Refused(message)
    pay = guard(style, app, Work(error), not_done=Refused)
    with pytest.raises(Refused) as caught:
        pay(1)
    assert caught.value is error
    found = pay.look(1)
    assert isinstance(found, Failed)
    assert "\n" not in found.fault.message and len(found.fault.message) <= 500


def test_an_error_whose_text_cannot_be_had_is_recorded_and_raised_as_it_is(memory: App, style: Any) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    pay = guard(style, memory, Work(Broken()), not_done=Broken)
    with pytest.raises(Broken):
        pay(1)
    assert pay.look(1).fault.type == "Broken"


def test_a_stop_iteration_from_the_work_is_an_error_and_not_a_result(memory: App) -> None:
    @memory.once(key="order:{order}")
    def pay(order: int) -> Any:
        return next(iter(()))

    with pytest.raises(NeedsReview) as told:
        pay(1)
    assert isinstance(told.value.__cause__, StopIteration)
    assert told.value.fault.type == "StopIteration"


# -- leases --------------------------------------------------------------------------------------


def test_a_dead_holders_claim_goes_to_review_and_is_not_run_again(app: App, clock: Any, style: Any) -> None:
    work = Work()
    pay = guard(style, app, work)
    _die_holding(app, pay)
    with pytest.raises(InProgress):
        pay(1)
    clock.advance(30)
    for _ in range(2):
        with pytest.raises(NeedsReview, match="stopped without a word"):
            pay(1)
    assert work.runs == 0


def _die_holding(app: App, pay: Any) -> Any:
    """A process that took the claim and was killed: what is left is the record."""
    return block(app.claims.take(pay.once.request((1,), {})))


def test_a_dead_holders_claim_is_run_again_if_that_is_safe(app: App, clock: Any, style: Any) -> None:
    work = Work()
    pay = guard(style, app, work, repeat="safe")
    _die_holding(app, pay)
    with pytest.raises(InProgress):
        pay(1)
    clock.advance(30)
    assert pay(1) == 1
    assert _claim(app).attempt == 2


def test_a_holder_that_was_replaced_cannot_write_and_leaves_evidence(app: App, clock: Any, style: Any) -> None:
    def slept() -> None:
        clock.advance(31)
        assert _elsewhere(lambda: pay(1)) == 2

    work = Work(slept)
    pay = guard(style, app, work, repeat="safe")
    with pytest.raises(ClaimLost, match="lost its claim while it ran: it is now done") as told:
        pay(1)
    assert told.value.state == "done"
    assert pay(1) == 2
    (report,) = block(evidence_of(app.store, "default/pay/order:1"))
    assert bytes(report.result) == b"2"


def test_a_holder_that_lost_its_claim_and_then_fails_raises_its_own_error(app: App, clock: Any, style: Any) -> None:
    def slept() -> None:
        clock.advance(31)
        _elsewhere(lambda: pay(1))
        raise ValueError("late")

    pay = guard(style, app, Work(slept), repeat="safe")
    with pytest.raises(ValueError, match="late"):
        pay(1)
    assert pay(1) == 2
    (report,) = block(evidence_of(app.store, "default/pay/order:1"))
    assert report.fault.message == "late"


def test_a_process_paused_between_the_take_and_the_work_renews_first(meddled: Any, clock: Any, style: Any) -> None:
    app, engine = meddled
    renewed: list[float] = []
    renew = app.claims.renew
    app.claims.renew = lambda held: (renewed.append(clock.monotonic()), renew(held))[1]
    engine.after = lambda: clock.advance(31)
    pay = guard(style, app, Work())
    assert pay(1) == 1
    assert renewed == [31.0]


def test_a_process_that_was_not_paused_does_not_renew_first(meddled: Any, clock: Any, style: Any) -> None:
    app, engine = meddled
    app.claims.renew = None
    engine.after = lambda: clock.advance(29)
    assert guard(style, app, Work())(1) == 1


def test_a_process_paused_between_the_take_and_the_work_does_not_work_if_it_lost(
    meddled: Any, clock: Any, style: Any
) -> None:
    app, engine = meddled
    other = App(type(app.store)(engine.inner, clock=clock), clock=clock)
    work, others = Work(), Work()

    def paused() -> None:
        clock.advance(31)
        assert _elsewhere(lambda: guard(type(style)("def"), other, others, repeat="safe")(1)) == 1

    engine.after = paused
    pay = guard(style, app, work, repeat="safe")
    with pytest.raises(ClaimLost, match=r"before it began: it is now done\. Nothing was done by this call"):
        pay(1)
    assert (work.runs, others.runs) == (0, 1)
    assert block(evidence_of(app.store, "default/pay/order:1")) == []
    other.close()


# -- the store in trouble ------------------------------------------------------------------------


def test_a_completion_that_cannot_be_recorded_says_that_the_work_was_done(meddled: Any, clock: Any, style: Any) -> None:
    app, engine = meddled
    pay = guard(style, app, Work(lambda: _break(engine)))
    with pytest.raises(StoreUnavailable) as told:
        pay(1)
    assert "was done; only its record is in doubt" in told.value.__notes__[0]
    engine._faults.clear()
    clock.advance(100)
    with pytest.raises(NeedsReview):
        pay(1)


def test_a_failure_that_cannot_be_recorded_is_still_the_users_own(meddled: Any, style: Any) -> None:
    app, engine = meddled

    def fail() -> None:
        _break(engine)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as told:
        guard(style, app, Work(fail))(1)
    assert "could not record this failure" in told.value.__notes__[0]


def _break(engine: Any) -> None:
    for _ in range(1_000):
        engine.refuse_connection()


def test_a_lost_acknowledgement_of_the_take_costs_nothing(meddled: Any, style: Any) -> None:
    app, engine = meddled
    engine.lose_reply()
    work = Work()
    pay = guard(style, app, work)
    assert (pay(1), pay(1), work.runs) == (1, 1, 1)


def test_a_lost_acknowledgement_of_the_result_costs_nothing(meddled: Any, style: Any) -> None:
    app, engine = meddled
    work = Work(engine.lose_reply)
    pay = guard(style, app, work)
    assert (pay(1), pay(1), work.runs) == (1, 1, 1)


# -- the store's promise -------------------------------------------------------------------------


def best_effort(app: App) -> App:
    app.store.best_effort = True
    return app


def test_a_store_that_may_lose_writes_is_refused_for_what_may_never_be_repeated(memory: App, style: Any) -> None:
    work = Work()
    pay = guard(style, best_effort(memory), work)
    with pytest.raises(StoreUnsafe, match=r'declare repeat="safe", or accept it with App\(best_effort=True\)'):
        pay(1)
    assert work.runs == 0
    assert not memory.store.scan("claim").block().records


def test_a_store_that_may_lose_writes_will_do_for_what_is_safe(memory: App, style: Any) -> None:
    assert guard(style, best_effort(memory), Work(), repeat="safe")(1) == 1


def test_a_store_that_may_lose_writes_will_do_if_the_app_says_so(style: Any, clock: Any) -> None:
    with App("memory://", best_effort=True, clock=clock) as app:
        assert guard(style, best_effort(app), Work())(1) == 1


def test_a_busy_claim_can_be_looked_at(app: App, style: Any) -> None:
    seen: list[Any] = []
    pay = guard(style, app, Work(lambda: seen.append(_elsewhere(lambda: pay.look(1)))))
    pay(1)
    assert isinstance(seen[0], Busy)


def test_a_stop_iteration_is_raised_as_it_is(app: App) -> None:
    """Python makes a RuntimeError of it wherever it leaves a generator."""
    first = StopIteration(3)

    @app.once(key="order:{order}")
    def pay(order: int) -> None:
        raise first

    @app.flow(key="order:{order}")
    def sell(order: int) -> None:
        raise first

    def ship() -> None:
        with app.claim("ship", "order:1"):
            raise first

    app.classify(not_done=StopIteration)
    for call in (lambda: pay(1), lambda: sell(1), ship):
        with pytest.raises(StopIteration) as told:
            call()
        assert told.value is first
    assert isinstance(pay.look(1), Failed)


def test_a_stop_iteration_from_inside_the_same_work_is_raised_as_it_is(app: App) -> None:
    @app.once(key="order:{order}", ignore=("deep",))
    def pay(order: int, deep: bool = False) -> str:
        if deep:
            raise StopIteration
        with pytest.raises(StopIteration):
            pay(order, deep=True)
        return "paid"

    assert pay(1) == "paid"
