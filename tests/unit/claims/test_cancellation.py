"""Cancelled, interrupted, thrown away: what was taken is given back, and what is unknown stays unknown."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from twiceproof import App, NeedsReview
from twiceproof.claims.claim import FAILED, Busy, Done, Failed, Fault, Held, InReview
from twiceproof.operations import await_, block
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.faulty_engine import FaultyEngine
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


class Slow:
    """Holds a commit until it is let go, in the store's own thread, so that a caller can be cancelled meanwhile."""

    def __init__(self, engine: Any, *, nth: int = 1) -> None:
        self.landed, self.go = threading.Event(), threading.Event()
        commit = engine.inner.commit
        calls: list[int] = []

        def slow(batches: Any) -> Any:
            calls.append(len(batches))
            answers = commit(batches)
            if len(calls) == nth:
                self.landed.set()
                self.go.wait(10)
            return answers

        engine.inner.commit = slow

    async def cancel(self, task: asyncio.Task[Any], *, times: int = 1) -> None:
        await asyncio.to_thread(self.landed.wait, 10)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        self.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_take_cancelled_while_its_write_is_in_flight_gives_the_key_back(meddled: Any) -> None:
    app, engine = meddled
    runs: list[int] = []

    @app.once(key="order:{order}")
    async def pay(order: int) -> int:
        runs.append(order)
        return 1

    async def scene() -> None:
        slow = Slow(engine)
        await slow.cancel(asyncio.create_task(pay(1)))
        assert await pay.look(1) is None
        assert runs == []
        assert await pay(1) == 1

    asyncio.run(scene())


def test_a_take_cancelled_twice_gives_the_key_back_too(meddled: Any) -> None:
    app, engine = meddled

    @app.once(key="order:{order}")
    async def pay(order: int) -> int:
        return 1

    async def scene() -> None:
        await Slow(engine).cancel(asyncio.create_task(pay(1)), times=3)
        assert await pay.look(1) is None

    asyncio.run(scene())


def test_a_take_cancelled_repeatedly_gives_the_key_back_where_reads_take_time(clock: ManualClock) -> None:
    """As a loop does that shuts down. Left held, the key would lapse, and wait for a person for nothing."""
    engine = FaultyEngine(MemoryEngine(clock))
    engine.reads_first = False  # as of a store elsewhere: each answer takes a trip
    app = App(GroupedStore(engine, clock=clock), clock=clock)

    @app.once(key="order:{order}")
    async def pay(order: int) -> int:
        return 1

    async def scene() -> None:
        slow = Slow(engine)
        task = asyncio.create_task(pay(1))
        await asyncio.to_thread(slow.landed.wait, 10)
        task.cancel()
        slow.go.set()
        while not task.done():
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await pay.look(1) is None
        assert await pay(1) == 1

    asyncio.run(scene())
    app.close()


class TimeIsUp(Exception):
    """The soft time limit of a job runner: an ordinary exception, out of a signal's handler."""


@pytest.fixture
def limit() -> Iterator[Callable[[], None]]:
    """Hits at once."""

    def ring(*_: Any) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def test_a_take_hit_by_a_time_limit_gives_the_key_back(meddled: Any, limit: Callable[[], None]) -> None:
    """Left held, the key would lapse, and wait for a person for nothing."""
    app, engine = meddled

    @app.once(key="order:{order}")
    def pay(order: int) -> str:
        return "paid"

    engine.after = limit
    with pytest.raises(TimeIsUp):
        pay(1)
    assert pay.look(1) is None
    assert pay(1) == "paid"


def test_a_take_whose_store_breaks_by_itself_gives_nothing_back(meddled: Any) -> None:
    """The twin: whether it landed is for the next one to see."""
    app, engine = meddled

    @app.once(key="order:{order}")
    def pay(order: int) -> str:
        return "paid"

    engine.after = lambda: (_ for _ in ()).throw(TimeIsUp)
    with pytest.raises(TimeIsUp):
        pay(1)
    assert isinstance(pay.look(1), Busy)


def cancelled_take(desk: Any, **how: Any) -> None:
    async def scene() -> None:
        slow = Slow(desk.engine)
        await slow.cancel(asyncio.create_task(await_(desk.claims.take(desk.ask("bob", **how)))))

    asyncio.run(scene())


def test_a_cancelled_take_gives_the_key_back_where_no_thread_is_to_be_had(desk: Any, monkeypatch: Any) -> None:
    async def scene() -> None:
        slow = Slow(desk.engine)
        task = asyncio.create_task(await_(desk.claims.take(desk.ask("bob"))))
        await asyncio.to_thread(slow.landed.wait, 10)
        task.cancel()
        monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", exhausted)
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()

    def exhausted(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    asyncio.run(scene())
    assert desk.record() is None


def test_a_cancelled_retry_leaves_the_failure_as_it_was(desk: Any) -> None:
    """Removed, the failure would be forgotten, and the next call would run without a word."""
    held, claim = desk.held()
    desk.run(desk.claims.fail(held, claim, Fault("ValueError", "no")))
    cancelled_take(desk, retry=True)
    assert desk.record().state == FAILED
    assert desk.take("cid") == Failed(Fault("ValueError", "no"), False, "run_1")
    assert desk.take("cid", retry=True).attempt == 2


def test_a_cancelled_retry_keeps_the_time_at_which_the_failure_is_forgotten(desk: Any) -> None:
    from twiceproof.claims.states import Lifetime

    held, claim = desk.held()
    desk.run(desk.claims.fail(held, claim, Fault("ValueError", "no"), Lifetime(keep_failed=100.0)))
    before = desk.record()
    desk.clock.advance(40)
    cancelled_take(desk, retry=True)
    assert (desk.record().queue, desk.record().due_at) == (before.queue, before.due_at)


def test_a_cancelled_re_entry_does_not_forget_that_the_work_had_begun(desk: Any) -> None:
    """The earlier entry may have acted: with the claim removed, anyone would act again."""
    desk.held("bob", reentrant=True)
    cancelled_take(desk, reentrant=True)
    assert isinstance(desk.take("cid"), Busy)
    desk.clock.advance(31)
    assert isinstance(desk.take("cid"), InReview)


def test_a_cancelled_take_of_an_expired_key_leaves_it_free(desk: Any) -> None:
    from twiceproof.claims.results import Packed
    from twiceproof.claims.states import Lifetime

    held, claim = desk.held()
    desk.run(desk.claims.complete(held, claim, Packed(), Lifetime(keep=10.0)))
    desk.clock.advance(10)
    cancelled_take(desk)
    assert desk.record() is None


def test_a_cancelled_take_that_found_the_key_busy_takes_nothing_away(desk: Any, monkeypatch: Any) -> None:
    held, _ = desk.held("ann")
    # as on a store that does not read first: the insert is sent at once, and finds ann's claim
    monkeypatch.setattr(desk.store, "_reads_here", False)

    async def scene() -> None:
        slow = Slow(desk.engine)
        await slow.cancel(asyncio.create_task(await_(desk.claims.take(desk.ask("bob")))))

    asyncio.run(scene())
    assert desk.record().fence == held.fence


def test_an_interrupt_while_the_take_is_in_flight_gives_the_key_back(desk: Any) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    desk.engine.after = interrupt
    with pytest.raises(KeyboardInterrupt):
        desk.take("ann")
    assert desk.record() is None
    assert isinstance(desk.take("bob"), Held)


def test_work_cancelled_in_the_middle_waits_for_a_person(app: App) -> None:
    begun = asyncio.Event()

    @app.once(key="order:{order}")
    async def pay(order: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def scene() -> None:
        task = asyncio.create_task(pay(1))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(NeedsReview, match="CancelledError while it ran"):
            await asyncio.wait_for(pay(1), 10)

    asyncio.run(scene())


def test_a_time_out_around_the_call_is_a_time_out_and_waits_for_a_person(app: App) -> None:
    @app.once(key="order:{order}")
    async def pay(order: int) -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pay(1), 0.05)
        assert isinstance(await pay.look(1), InReview)

    asyncio.run(scene())


def test_a_completion_cancelled_while_it_is_in_flight_still_lands(meddled: Any) -> None:
    app, engine = meddled

    @app.once(key="order:{order}")
    async def pay(order: int) -> str:
        return "paid"

    async def scene() -> None:
        slow = Slow(engine, nth=2)
        await slow.cancel(asyncio.create_task(pay(1)))
        assert isinstance(await pay.look(1), Done)
        assert await pay(1) == "paid"

    asyncio.run(scene())


def test_a_waiting_duplicate_that_is_cancelled_leaves_the_first_alone(app: App) -> None:
    go = asyncio.Event()

    @app.once(key="order:{order}", on_duplicate="wait")
    async def pay(order: int) -> str:
        await go.wait()
        return "paid"

    async def scene() -> None:
        first = asyncio.create_task(pay(1))
        while await pay.look(1) is None:
            await asyncio.sleep(0)
        second = asyncio.create_task(pay(1))
        for _ in range(20):
            await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go.set()
        assert await first == "paid"

    asyncio.run(scene())


@pytest.mark.parametrize("block_", [False, True], ids=["once", "claim"])
def test_a_coroutine_that_is_thrown_away_leaves_its_claim_to_lapse(app: App, clock: Any, block_: bool) -> None:
    """It can await nothing more, so it cannot even park itself; it must not complain about that either."""

    begun: list[int] = []

    @app.once(key="order:{order}", name="pay")
    async def pay(order: int) -> None:
        begun.append(order)
        await asyncio.Event().wait()

    async def with_block(order: int) -> None:
        async with app.claim("pay", f"order:{order}"):
            begun.append(order)
            await asyncio.Event().wait()

    async def scene() -> None:
        thrown = with_block(1) if block_ else pay(1)
        future = thrown.send(None)
        while not begun:  # a store that does not commit on the spot has it wait first
            while future is not None and not future.done():  # None: it only lets others run
                await asyncio.sleep(0)
            future = thrown.send(None)
        thrown.close()
        assert app._heartbeat._holds == {}
        assert isinstance(await pay.look(1), Busy)
        clock.advance(31)
        with pytest.raises(NeedsReview):
            await asyncio.wait_for(pay(1), 10)

    asyncio.run(scene())


def test_a_take_thrown_away_while_its_write_is_in_flight_does_not_complain(meddled: Any) -> None:
    memory, _ = meddled  # an engine that does not commit on the spot

    @memory.once(key="order:{order}")
    async def pay(order: int) -> None: ...

    async def scene() -> None:
        thrown = pay(1)
        thrown.send(None)
        thrown.close()

    asyncio.run(scene())
    assert block(memory.claims.look(pay.once.request((2,), {}).at)) is None
