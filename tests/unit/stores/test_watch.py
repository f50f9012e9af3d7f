"""The watch: what rings while its owner looks elsewhere is not missed; and what rings for whom."""

import threading

import pytest

from twiceproof.records import Address, Batch, Check, Insert, Remove, Replace
from twiceproof.stores.notifications import SOON, ChangeNotifier, Subscription, names_to_notify, queue_channel

PATIENT = 20.0
HERE = Address("shop/order/17", "claim", "self")


class Listening:
    """Counts how long each wait was allowed to be relied on."""

    def __init__(self, most=None):
        self.most = most
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.most


def returns(watch, seconds=PATIENT):
    """Whether a wait ends long before its time."""
    thread = threading.Thread(target=lambda: watch.wait(seconds), daemon=True)
    thread.start()
    thread.join(PATIENT / 4)
    return not thread.is_alive()


def test_what_rang_before_the_wait_is_heard_in_it():
    bell = ChangeNotifier()
    watch = Subscription(bell, ["a"], Listening())
    bell.ring(["a"])
    assert returns(watch)


def test_each_wait_needs_a_ring_of_its_own():
    bell = ChangeNotifier()
    watch = Subscription(bell, ["a"], Listening())
    bell.ring(["a"])
    bell.ring(["a"])
    watch.wait(PATIENT)
    waited = threading.Event()
    thread = threading.Thread(target=lambda: (watch.wait(10 * PATIENT), waited.set()), daemon=True)
    thread.start()
    assert not waited.wait(0.05)
    bell.ring(["a"])  # and it still stands there
    assert waited.wait(PATIENT)


def test_a_ring_for_another_place_wakes_nobody():
    bell = ChangeNotifier()
    watch = Subscription(bell, ["a"], Listening())
    bell.ring(["b"])
    assert watch._calls.empty()


def test_a_watch_that_moved_hears_of_its_new_places_and_no_longer_of_the_old():
    bell = ChangeNotifier()
    watch = Subscription(bell, ["a", "b"], Listening())
    watch.move(["b", "c"])
    bell.ring(["a"])
    assert watch._calls.empty()
    bell.ring(["c"])
    assert returns(watch)
    bell.ring(["b"])
    assert returns(watch)


def test_a_closed_watch_leaves_the_bell():
    bell = ChangeNotifier()
    Subscription(bell, ["a", "b"], Listening()).close()
    assert not bell


def test_its_owner_can_be_woken_by_anybody():
    watch = Subscription(ChangeNotifier(), [], Listening())
    watch.wake()
    assert returns(watch)


def test_a_wait_is_no_longer_than_the_store_vouches_for():
    listening = Listening(0.001)
    assert returns(Subscription(ChangeNotifier(), ["a"], listening))
    assert listening.asked == 1


# -- what rings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "place"),
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
def test_a_change_of_hands_rings_for_its_space_and_what_is_due_soon_for_its_queue(write, place):
    assert place in names_to_notify(Batch([Check(HERE, fence=1), write], "n"))


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
def test_whatever_nobody_waits_for_rings_for_nobody(write):
    assert names_to_notify(Batch([write], "n")) == []
