"""Notifications: waiters for a space or a queue are woken by its changes, and by no others."""

import asyncio
import threading

import pytest

from twiceproof.records import Address, Batch, Check, Insert, Remove, Replace
from twiceproof.stores.notifications import SOON, ChangeNotifier, Subscription, names_to_notify, queue_channel

PATIENT = 20.0


def waiting(notifier, space):
    """A thread that waits for the space, and is known to wait."""
    thread = threading.Thread(target=lambda: notifier.pause(space, PATIENT).block(), daemon=True)
    before = len(notifier.waiters.get(space, ()))
    thread.start()
    for _ in range(10_000_000):
        if len(notifier.waiters.get(space, ())) > before:
            return thread
    raise AssertionError("It never came to wait.")


def test_a_notification_wakes_a_blocked_waiter():
    notifier = ChangeNotifier()
    thread = waiting(notifier, "shop")
    notifier.notify(["shop"])
    thread.join(PATIENT)
    assert not thread.is_alive()


def test_a_notification_wakes_an_awaiting_waiter():
    notifier = ChangeNotifier()

    async def wait():
        task = asyncio.ensure_future(notifier.pause("shop", PATIENT).wait())
        await asyncio.sleep(0)
        notifier.notify(["shop"])
        await asyncio.wait_for(task, PATIENT / 2)

    asyncio.run(wait())
    assert not notifier.waiters


def test_a_notification_wakes_all_who_wait_for_this_space_and_no_other():
    notifier = ChangeNotifier()
    mine, other = [waiting(notifier, "mine") for _ in range(3)], waiting(notifier, "other")
    notifier.notify(["mine"])
    for thread in mine:
        thread.join(PATIENT)
    assert not any(thread.is_alive() for thread in mine)
    assert other.is_alive()
    notifier.notify_all()
    other.join(PATIENT)
    assert not other.is_alive()


def test_a_pause_ends_by_itself():
    notifier = ChangeNotifier()
    notifier.pause("shop", 0.001).block()
    asyncio.run(notifier.pause("shop", 0.001).wait())


def test_no_waiter_is_left_in_the_notifier_after_a_pause():
    notifier = ChangeNotifier()
    notifier.pause("shop", 0.001).block()
    asyncio.run(notifier.pause("shop", 0.001).wait())
    assert not notifier.waiters


def test_a_cancelled_waiter_leaves_the_notifier():
    notifier = ChangeNotifier()

    async def cancel():
        task = asyncio.ensure_future(notifier.pause("shop", PATIENT).wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancel())
    assert not notifier.waiters


def test_a_notification_that_comes_after_the_loop_was_closed_does_no_harm():
    notifier = ChangeNotifier()

    async def wait():
        task = asyncio.ensure_future(notifier.pause("shop", PATIENT).wait())
        await asyncio.sleep(0)
        wakers = list(notifier.waiters["shop"])
        task.cancel()
        await asyncio.wait([task])
        return wakers

    (late,) = asyncio.run(wait())
    late()


def test_a_notification_without_waiters_does_nothing():
    notifier = ChangeNotifier()
    notifier.notify(["shop"])
    assert not notifier.waiters


def test_a_matching_notification_wakes_the_spaces_that_match():
    notifier = ChangeNotifier()
    mine, other = waiting(notifier, "shop one"), waiting(notifier, "bank")
    notifier.notify_matching(lambda space: space.startswith("shop"))
    mine.join(PATIENT)
    assert not mine.is_alive()
    assert other.is_alive()
    notifier.notify_all()
    other.join(PATIENT)


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_right_after_the_notification_is_not_lost(turns):
    """A duplicate that waits in a loop would go on waiting, whatever its time-out."""
    notifier = ChangeNotifier()

    async def wait_on():
        while True:
            await notifier.pause("shop", PATIENT).wait()

    async def scene():
        task = asyncio.ensure_future(wait_on())
        await asyncio.sleep(0)
        notifier.notify(["shop"])
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENT / 2)
        return task.cancelled()

    assert asyncio.run(scene())
    assert not notifier.waiters


def test_a_pause_without_a_notification_ends_by_itself():
    notifier = ChangeNotifier()
    asyncio.run(notifier.pause("shop", 0.001).wait())
    assert not notifier.waiters


# -- subscriptions -------------------------------------------------------------------------------

HERE = Address("shop/order/17", "claim", "self")


class Listening:
    """Counts how long each wait was allowed to be relied on."""

    def __init__(self, most=None):
        self.most = most
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.most


def returns(subscription, seconds=PATIENT):
    """Whether a wait ends long before its time."""
    thread = threading.Thread(target=lambda: subscription.wait(seconds), daemon=True)
    thread.start()
    thread.join(PATIENT / 4)
    return not thread.is_alive()


def test_a_notification_before_the_wait_ends_the_wait():
    notifier = ChangeNotifier()
    subscription = Subscription(notifier, ["a"], Listening())
    notifier.notify(["a"])
    assert returns(subscription)


def test_each_wait_needs_a_notification_of_its_own():
    notifier = ChangeNotifier()
    subscription = Subscription(notifier, ["a"], Listening())
    notifier.notify(["a"])
    notifier.notify(["a"])
    subscription.wait(PATIENT)
    waited = threading.Event()
    thread = threading.Thread(target=lambda: (subscription.wait(10 * PATIENT), waited.set()), daemon=True)
    thread.start()
    assert not waited.wait(0.05)
    notifier.notify(["a"])  # and it still waits for more
    assert waited.wait(PATIENT)


def test_a_notification_for_another_name_wakes_no_subscription():
    notifier = ChangeNotifier()
    subscription = Subscription(notifier, ["a"], Listening())
    notifier.notify(["b"])
    assert subscription._calls.empty()


def test_a_subscription_that_moved_is_woken_for_its_new_names_only():
    notifier = ChangeNotifier()
    subscription = Subscription(notifier, ["a", "b"], Listening())
    subscription.move(["b", "c"])
    notifier.notify(["a"])
    assert subscription._calls.empty()
    notifier.notify(["c"])
    assert returns(subscription)
    notifier.notify(["b"])
    assert returns(subscription)


def test_a_closed_subscription_leaves_the_notifier():
    notifier = ChangeNotifier()
    Subscription(notifier, ["a", "b"], Listening()).close()
    assert not notifier.waiters


def test_a_subscription_can_be_woken_by_any_caller():
    subscription = Subscription(ChangeNotifier(), [], Listening())
    subscription.wake()
    assert returns(subscription)


def test_a_wait_is_no_longer_than_the_store_can_rely_on_notifications():
    listening = Listening(0.001)
    assert returns(Subscription(ChangeNotifier(), ["a"], listening))
    assert listening.asked == 1


# -- which writes notify ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (Insert(HERE, "", draw=True, queue="q", due_in=0.0), queue_channel("q")),
        (Insert(HERE, "", queue="q", due_in=SOON / 2), queue_channel("q")),
        (Replace(HERE, "", fence=1, draw=True, queue="q", due_in=1.0), queue_channel("q")),
        (Replace(HERE, None, version="1", queue="q", due_in=1.0), queue_channel("q")),
        (Insert(HERE, "", draw=True, lease=2.0, queue="q", due_in=2.0), queue_channel("q")),
        (Replace(HERE, "", fence=1, draw=True), HERE.space),
        (Remove(HERE, fence=1), HERE.space),
    ],
)
def test_a_takeover_notifies_its_space_and_what_is_due_soon_its_queue(write, name):
    assert name in names_to_notify(Batch([Check(HERE, fence=1), write], "n"))


@pytest.mark.parametrize(
    "write",
    [
        Insert(HERE, "", draw=True),
        Insert(HERE, "", draw=True, lease=30.0, queue="q", due_in=30.0),
        Insert(HERE, "", draw=True, queue="q", due_in=SOON),
        Replace(HERE, None, fence=1, lease=1.0, queue="q", due_in=1.0),
        Check(HERE, fence=1),
    ],
    ids=["plain", "take", "later", "heartbeat", "check"],
)
def test_other_writes_notify_no_one(write):
    assert names_to_notify(Batch([write], "n")) == []
