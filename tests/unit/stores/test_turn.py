"""Who is answered on the spot again and again lets the other tasks of its event loop run now and then."""

import asyncio

import pytest

from twiceproof import App
from twiceproof.claims.claim import Done
from twiceproof.records import Address, Insert
from twiceproof.stores import group_waiter as turn
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.open import open_store

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
        for nth in range(10 * turn.MOST):
            await store.write(Insert(Address(f"s{nth}", "claim", "self"), "{}")).wait()

    assert 5 <= asyncio.run(turns_of_another_task(work)) <= 20


def test_a_task_that_only_reads_on_the_spot_lets_another_run(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/r.db")

    async def work():
        for _ in range(10 * turn.MOST):
            await store.read(HERE).wait()

    assert 5 <= asyncio.run(turns_of_another_task(work)) <= 20
    store.close()


def test_a_task_that_asks_for_little_keeps_its_turn():
    store = GroupedStore(MemoryEngine())

    async def work():
        for _ in range(turn.MOST // 2):
            await store.read(HERE).wait()

    turn._answers.given = 0
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
    found = [asyncio.run(_cancelled_after(given)) for given in range(turn.MOST - 4, turn.MOST)]
    assert {(runs, type(look)) for runs, look in found} == {(0, type(None)), (1, Done)}


async def _cancelled_after(given):
    runs = 0
    with App("memory://") as app:

        @app.once(key="order:{order}")
        async def pay(order: int) -> int:
            nonlocal runs
            runs += 1
            return order

        turn._answers.given = given
        task = asyncio.create_task(pay(1))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return runs, await pay.look(1)
