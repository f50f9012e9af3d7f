"""Work that a blocking caller does itself and an event loop leaves to the store's thread."""

import asyncio
import threading

import pytest

from twiceproof.stores.grouped import Offload
from twiceproof.threads import SerialThread

PATIENT = 20.0


def name_of_this_thread():
    return threading.current_thread().name


def test_a_blocking_caller_does_it_itself():
    assert Offload(SerialThread("hand"), name_of_this_thread).block() == name_of_this_thread()


def test_an_event_loop_leaves_it_to_the_hand():
    hand = SerialThread("the hand")
    assert asyncio.run(Offload(hand, name_of_this_thread).wait()) == "the hand"
    hand.stop()


def test_its_error_is_raised_by_the_caller():
    hand = SerialThread("hand")
    with pytest.raises(ZeroDivisionError):
        Offload(hand, lambda: 1 / 0).block()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Offload(hand, lambda: 1 / 0).wait())
    hand.stop()


def test_an_event_loop_goes_on_meanwhile():
    hand, go = SerialThread("hand"), threading.Event()

    async def both():
        task = asyncio.ensure_future(Offload(hand, lambda: go.wait(PATIENT)).wait())
        await asyncio.sleep(0)
        go.set()  # only a loop that is not blocked gets here
        return await task

    assert asyncio.run(both()) is True
    hand.stop()


def test_a_cancelled_caller_is_not_told_and_the_hand_goes_on():
    hand, go, done = SerialThread("hand"), threading.Event(), threading.Event()

    async def cancel():
        task = asyncio.ensure_future(Offload(hand, lambda: go.wait(PATIENT)).wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        return await Offload(hand, lambda: "next").wait()

    assert asyncio.run(cancel()) == "next"
    hand.do(done.set)
    assert done.wait(PATIENT)
    hand.stop()


def test_a_loop_that_is_closed_meanwhile_does_no_harm():
    hand, go = SerialThread("hand"), threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(Offload(hand, lambda: go.wait(PATIENT)).wait())
    loop.call_soon(loop.stop)
    loop.run_forever()
    task._log_destroy_pending = False
    loop.close()
    go.set()
    assert asyncio.run(Offload(hand, lambda: "next").wait()) == "next"
    hand.stop()
