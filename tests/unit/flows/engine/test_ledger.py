"""The turn to write, and what a ledger promises to several branches at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.unit.flows.stage import Stage
from twiceproof import StoreFull
from twiceproof.flows.engine.context import are_siblings, inside_flow
from twiceproof.flows.engine.exits import GiveBack, Review, Undo, Wait, merged
from twiceproof.flows.engine.ledger import EntryNote
from twiceproof.flows.engine.ledger_flusher import FairLock
from twiceproof.operations import block
from twiceproof.records import Address, Check, Insert

# -- the turn --------------------------------------------------------------------------------------


def test_a_free_turn_is_taken_once() -> None:
    turn = FairLock()
    assert turn.take_now()
    assert not turn.take_now()
    turn.give()
    assert turn.take_now()


def test_a_turn_is_handed_to_whoever_waits_longest() -> None:
    turn, order = FairLock(), []

    async def main() -> None:
        turn.take_now()

        async def one(name: str) -> None:
            await turn.take().wait()
            order.append(name)
            turn.give()

        tasks = [asyncio.create_task(one(name)) for name in "abc"]
        await asyncio.sleep(0)
        turn.give()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == ["a", "b", "c"]


def test_threads_and_event_loops_share_one_turn() -> None:
    turn, inside, most = FairLock(), 0, 0

    def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)

    def leave() -> None:
        nonlocal inside
        inside -= 1
        turn.give()

    def blocking() -> None:
        for _ in range(200):
            turn.take().block()
            enter()
            leave()

    async def awaiting() -> None:
        for _ in range(200):
            await turn.take().wait()
            enter()
            await asyncio.sleep(0)
            leave()

    threads = [threading.Thread(target=blocking) for _ in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(awaiting())
    for thread in threads:
        thread.join(10)
    assert (inside, most) == (0, 1)
    assert turn.take_now()


@pytest.mark.parametrize("handed", [False, True], ids=["in line", "just handed over"])
def test_one_who_is_cancelled_does_not_keep_the_turn(handed: bool) -> None:
    turn = FairLock()

    async def main() -> None:
        turn.take_now()
        task = asyncio.create_task(turn.take().wait())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        if handed:
            turn.give()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if not handed:
            turn.give()

    asyncio.run(main())
    assert turn.take_now()


def test_a_loop_that_is_gone_is_passed_over() -> None:
    turn = FairLock()
    turn.take_now()
    loop = asyncio.new_event_loop()
    waiting: Any = turn.take().wait()
    task = loop.create_task(waiting)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    turn.give()
    assert turn.take_now()
    task._log_destroy_pending = False  # type: ignore[attr-defined]


# -- the ledger ------------------------------------------------------------------------------------


def test_a_flush_waits_for_what_another_branch_has_on_its_way(stage: Stage) -> None:
    """The other took our completion along: until that is acknowledged, it may be lost, and nothing may act on it."""
    app = stage.process()
    engine: Any = app.engine  # type: ignore[attr-defined]
    commit, held_up, go_on = engine.commit, threading.Event(), threading.Event()

    def slow(batches: Any) -> Any:
        if any(write.at.kind == "step" for batch in batches for write in batch.writes):
            held_up.set()
            assert go_on.wait(10)
        return commit(batches)

    @app.flow(key="order:{order}")
    def sync(order: int) -> bool:
        session = inside_flow("this")
        session.finished("ours", "done", EntryNote())
        session.unvisited = set()
        other = threading.Thread(target=lambda: block(session.ledger.flush()))
        other.start()
        assert held_up.wait(10)
        ours = threading.Thread(target=lambda: block(session.ledger.flush()))
        ours.start()
        ours.join(0.05)
        waits = ours.is_alive()
        go_on.set()
        other.join(10)
        ours.join(10)
        return waits

    app.runtime.flusher.stop()  # it would be the one to take it along
    engine.commit = slow
    assert sync(1) is True


def test_what_could_not_be_written_for_one_branch_is_written_by_the_next(stage: Stage) -> None:
    app = stage.process()
    engine: Any = app.engine  # type: ignore[attr-defined]
    commit, failures = engine.commit, [StoreFull("no room")]

    def failing(batches: Any) -> Any:
        if failures and any(write.at.kind == "step" for batch in batches for write in batch.writes):
            raise failures.pop()
        return commit(batches)

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        session = inside_flow("this")
        session.finished("ours", "done", EntryNote())
        with pytest.raises(StoreFull):
            block(session.ledger.flush())
        assert session.ledger.backlog == 1
        block(session.ledger.flush())
        assert session.ledger.backlog == 0
        assert stage.entries("sync", "order:1")["ours"].state == "done"

    app.runtime.flusher.stop()
    engine.commit = failing
    sync(1)
    assert not failures


def test_more_than_a_store_lands_together_goes_in_parts(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int) -> int:
        session = inside_flow("this")
        for n in range(150):
            piece = Insert(Address(session.space, "resource", f"piece {n}"), "{}")
            session.finished(f"item[{n}]", "done", EntryNote(), piece)
        return session.ledger.backlog

    app.runtime.flusher.stop()
    assert sync(1) == 150
    assert len(stage.entries("sync", "order:1")) == 150
    assert app.store.batch_limit < 150


def test_a_timer_that_is_over_at_once_is_one_entry(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int) -> int:
        app.sleep(0)
        return 7

    assert sync(1) == 7
    assert stage.entries("sync", "order:1")["sleep"].state == "done"


# -- stops of several branches -----------------------------------------------------------------------

AT, OTHER = Address("s", "arrival", "a"), Address("s", "arrival", "b")


def test_the_earliest_wait_counts_and_none_of_the_conditions_is_lost() -> None:
    stop = merged(
        [
            Wait("a callback", None, (Check(AT, absent=True),)),
            Wait("a timer", 3_600.0),
            Wait("another", 7_200.0, (Check(OTHER, absent=True), Check(AT, absent=True))),
        ]
    )
    assert isinstance(stop, Wait)
    assert stop.seconds == 3_600.0
    assert stop.why == "a timer, and 2 more"
    assert {write.at for write in stop.unless} == {AT, OTHER}
    assert len(stop.unless) == 2


@pytest.mark.parametrize(
    ("stops", "kind"),
    [
        ([Review("why"), Wait("soon", 60.0)], Wait),
        ([Review("why"), Wait("in a month", 30 * 86_400.0)], Review),
        ([Review("why"), Wait("for somebody", None)], Review),
        ([Review("why"), Undo(), GiveBack(), Wait("soon", 60.0)], Undo),
        ([Wait("soon", 60.0), GiveBack(), Review("why")], GiveBack),
    ],
)
def test_what_counts_of_several_stops(stops: list[Any], kind: type) -> None:
    assert type(merged(stops)) is kind


@pytest.mark.parametrize(
    ("one", "other", "beside"),
    [
        ("1.1", "1.2", True),
        ("1.1", "2.1", False),
        ("", "1.1", False),
        ("1.1", "1.1/1.2", False),
        ("1.1/1.1", "1.1/1.2", True),
        ("1.1/1.1", "1.2", True),
    ],
)
def test_which_paths_are_beside_each_other(one: str, other: str, beside: bool) -> None:
    assert are_siblings(one, other) is beside
    assert are_siblings(other, one) is beside
