"""Waiting for a store: work left to its thread, and event loops whose other tasks must run now and then."""

import asyncio
import threading

import pytest

from twiceproof import App
from twiceproof.claims.claim import Done
from twiceproof.operations import Offload
from twiceproof.records import Address, Insert
from twiceproof.stores import waiting
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.open import open_store
from twiceproof.threads import SerialThread

PATIENT = 20.0


def name_of_this_thread():
    return threading.current_thread().name


def test_a_blocking_caller_does_it_itself():
    assert Offload(SerialThread("thread"), name_of_this_thread).block() == name_of_this_thread()


def test_an_event_loop_leaves_it_to_the_thread():
    thread = SerialThread("the thread")
    assert asyncio.run(Offload(thread, name_of_this_thread).wait()) == "the thread"
    thread.stop()


def test_its_error_is_raised_by_the_caller():
    thread = SerialThread("thread")
    with pytest.raises(ZeroDivisionError):
        Offload(thread, lambda: 1 / 0).block()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Offload(thread, lambda: 1 / 0).wait())
    thread.stop()


def test_an_event_loop_goes_on_meanwhile():
    thread, go = SerialThread("thread"), threading.Event()

    async def both():
        task = asyncio.ensure_future(Offload(thread, lambda: go.wait(PATIENT)).wait())
        await asyncio.sleep(0)
        go.set()  # only a loop that is not blocked gets here
        return await task

    assert asyncio.run(both()) is True
    thread.stop()


def test_a_cancelled_caller_is_not_told_and_the_thread_goes_on():
    thread, go, done = SerialThread("thread"), threading.Event(), threading.Event()

    async def cancel():
        task = asyncio.ensure_future(Offload(thread, lambda: go.wait(PATIENT)).wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        return await Offload(thread, lambda: "next").wait()

    assert asyncio.run(cancel()) == "next"
    thread.do(done.set)
    assert done.wait(PATIENT)
    thread.stop()


def test_a_loop_that_is_closed_meanwhile_does_no_harm():
    thread, go = SerialThread("thread"), threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(Offload(thread, lambda: go.wait(PATIENT)).wait())
    loop.call_soon(loop.stop)
    loop.run_forever()
    task._log_destroy_pending = False
    loop.close()
    go.set()
    assert asyncio.run(Offload(thread, lambda: "next").wait()) == "next"
    thread.stop()


# -- letting the other tasks of a loop run

HERE = Address("space", "claim", "self")


@pytest.fixture(params=["memory", "sqlite"])
def app(request, tmp_path):
    with App("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/t.db?durability=process") as made:
        yield made


async def turns_of_another_task(work):
    """How often a second task had its turn while this was awaited."""
    turns = 0

    async def another():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(another())
    await work()
    task.cancel()
    return turns


def test_a_task_that_only_writes_to_memory_lets_another_run():
    store = GroupedStore(MemoryEngine())

    async def work():
        for nth in range(10 * waiting.ANSWERS_PER_TURN):
            await store.write(Insert(Address(f"s{nth}", "claim", "self"), "{}")).wait()

    assert 5 <= asyncio.run(turns_of_another_task(work)) <= 20


def test_a_task_that_only_reads_on_the_spot_lets_another_run(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/r.db")

    async def work():
        for _ in range(10 * waiting.ANSWERS_PER_TURN):
            await store.read(HERE).wait()

    assert 5 <= asyncio.run(turns_of_another_task(work)) <= 20
    store.close()


def test_a_task_that_asks_for_little_keeps_its_turn():
    store = GroupedStore(MemoryEngine())

    async def work():
        for _ in range(waiting.ANSWERS_PER_TURN // 2):
            await store.read(HERE).wait()

    waiting._answers.given = 0
    assert asyncio.run(turns_of_another_task(work)) == 0


def test_a_task_that_is_only_answered_with_earlier_results_can_be_timed_out(app):
    @app.once(key="order:{order}")
    async def pay(order: int) -> int:
        return order

    async def scene():
        assert await pay(1) == 1
        async with asyncio.timeout(0.01):
            while True:
                assert await pay(1) == 1

    with pytest.raises(TimeoutError):
        asyncio.run(scene())


def test_a_cancellation_at_any_of_its_turns_finds_the_work_recorded_or_not_begun():
    """Wherever the turn is over: at the take, nothing was done and the key is free; at the completion, it is done."""
    found = [
        asyncio.run(_cancelled_after(given)) for given in range(waiting.ANSWERS_PER_TURN - 4, waiting.ANSWERS_PER_TURN)
    ]
    assert {(runs, type(look)) for runs, look in found} == {(0, type(None)), (1, Done)}


async def _cancelled_after(given):
    runs = 0
    with App("memory://") as app:

        @app.once(key="order:{order}")
        async def pay(order: int) -> int:
            nonlocal runs
            runs += 1
            return order

        waiting._answers.given = given
        task = asyncio.create_task(pay(1))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return runs, await pay.look(1)
