"""The bell: wakes those who wait for a change in a space, and nobody else."""

import asyncio
import threading

import pytest

from twiceproof.stores.notifications import ChangeNotifier

PATIENT = 20.0


def waiting(bell, space):
    """A thread that waits for the space, and is known to wait."""
    thread = threading.Thread(target=lambda: bell.pause(space, PATIENT).block(), daemon=True)
    before = len(bell._waiters.get(space, ()))
    thread.start()
    for _ in range(10_000_000):
        if len(bell._waiters.get(space, ())) > before:
            return thread
    raise AssertionError("It never came to wait.")


def test_a_ring_wakes_a_blocked_waiter():
    bell = ChangeNotifier()
    thread = waiting(bell, "shop")
    bell.ring(["shop"])
    thread.join(PATIENT)
    assert not thread.is_alive()


def test_a_ring_wakes_an_awaiting_waiter():
    bell = ChangeNotifier()

    async def wait():
        task = asyncio.ensure_future(bell.pause("shop", PATIENT).wait())
        await asyncio.sleep(0)
        bell.ring(["shop"])
        await asyncio.wait_for(task, PATIENT / 2)

    asyncio.run(wait())
    assert not bell


def test_a_ring_wakes_all_who_wait_for_this_space_and_no_other():
    bell = ChangeNotifier()
    mine, other = [waiting(bell, "mine") for _ in range(3)], waiting(bell, "other")
    bell.ring(["mine"])
    for thread in mine:
        thread.join(PATIENT)
    assert not any(thread.is_alive() for thread in mine)
    assert other.is_alive()
    bell.ring_all()
    other.join(PATIENT)
    assert not other.is_alive()


def test_a_pause_ends_by_itself():
    bell = ChangeNotifier()
    bell.pause("shop", 0.001).block()
    asyncio.run(bell.pause("shop", 0.001).wait())


def test_nobody_is_left_in_the_bell_after_a_pause():
    bell = ChangeNotifier()
    bell.pause("shop", 0.001).block()
    asyncio.run(bell.pause("shop", 0.001).wait())
    assert not bell


def test_a_cancelled_waiter_leaves_the_bell():
    bell = ChangeNotifier()

    async def cancel():
        task = asyncio.ensure_future(bell.pause("shop", PATIENT).wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancel())
    assert not bell


def test_a_ring_that_comes_after_the_loop_was_closed_does_no_harm():
    bell = ChangeNotifier()

    async def wait():
        task = asyncio.ensure_future(bell.pause("shop", PATIENT).wait())
        await asyncio.sleep(0)
        wakers = list(bell._waiters["shop"])
        task.cancel()
        await asyncio.wait([task])
        return wakers

    (late,) = asyncio.run(wait())
    late()


def test_a_ring_nobody_waits_for_is_nothing():
    bell = ChangeNotifier()
    bell.ring(["shop"])
    assert not bell


def test_a_ring_where_wakes_the_spaces_that_are_meant():
    bell = ChangeNotifier()
    mine, other = waiting(bell, "shop one"), waiting(bell, "bank")
    bell.ring_where(lambda space: space.startswith("shop"))
    mine.join(PATIENT)
    assert not mine.is_alive()
    assert other.is_alive()
    bell.ring_all()
    other.join(PATIENT)


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_right_after_the_ring_is_not_lost(turns):
    """A duplicate that waits in a loop would go on waiting, whatever its time-out."""
    bell = ChangeNotifier()

    async def wait_on():
        while True:
            await bell.pause("shop", PATIENT).wait()

    async def scene():
        task = asyncio.ensure_future(wait_on())
        await asyncio.sleep(0)
        bell.ring(["shop"])
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENT / 2)
        return task.cancelled()

    assert asyncio.run(scene())
    assert not bell


def test_a_pause_without_a_ring_ends_by_itself():
    bell = ChangeNotifier()
    asyncio.run(bell.pause("shop", 0.001).wait())
    assert not bell
