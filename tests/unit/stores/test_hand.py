"""The store's own thread."""

import threading

import pytest

from twiceproof.threads import SerialThread

PATIENT = 20.0


def test_no_thread_is_started_before_it_is_needed():
    before = threading.active_count()
    SerialThread("idle").stop()
    assert threading.active_count() == before


def test_it_does_what_it_is_handed_in_order():
    hand, done, end = SerialThread("orderly"), [], threading.Event()
    for nth in range(100):
        hand.do(lambda nth=nth: done.append(nth))
    hand.do(end.set)
    assert end.wait(PATIENT)
    assert done == list(range(100))
    hand.stop()


def test_one_thread_does_it_all_however_many_hand_over():
    hand, names = SerialThread("single"), set()
    threads = [
        threading.Thread(target=lambda: hand.do(lambda: names.add(threading.current_thread().ident))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hand.stop()
    assert len(names) == 1


def test_stopping_finishes_what_was_handed_over():
    hand, done = SerialThread("thorough"), []
    for nth in range(50):
        hand.do(lambda nth=nth: done.append(nth))
    hand.stop()
    assert done == list(range(50))


def test_it_starts_again_after_it_was_stopped():
    hand, again = SerialThread("tireless"), threading.Event()
    hand.do(lambda: None)
    hand.stop()
    hand.do(again.set)
    assert again.wait(PATIENT)
    hand.stop()


def test_it_can_be_stopped_by_itself():
    hand, done = SerialThread("own"), threading.Event()

    def stop():
        hand.stop()
        done.set()

    hand.do(stop)
    assert done.wait(PATIENT)


def test_after_a_reset_it_has_a_thread_of_its_own():
    hand, done = SerialThread("forked"), threading.Event()
    hand.do(lambda: None)
    old = hand._thread
    hand.reset()
    hand.do(done.set)
    assert done.wait(PATIENT)
    assert hand._thread is not old
    hand.stop()


@pytest.mark.parametrize("error", [MemoryError("no room"), SystemExit(1)])
def test_what_goes_wrong_with_one_task_is_told_and_the_next_one_is_done(caplog, error):
    """Or whoever hands something over later would wait for ever."""

    def fails():
        raise error

    hand, done = SerialThread("test-hand"), threading.Event()
    hand.do(fails)
    hand.do(done.set)
    assert done.wait(PATIENT)
    assert type(error).__name__ in caplog.text
    hand.stop()
