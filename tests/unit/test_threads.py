"""Threads of our own, what a fork calls, and spinning before sleeping."""

import gc
import itertools
import os
import threading
import time
import weakref

import pytest

from twiceproof import App
from twiceproof import threads as forks
from twiceproof.threads import (
    LONGEST_REST,
    AdaptiveSpin,
    BackgroundThread,
    SerialThread,
    ThreadGroup,
    ThreadRun,
    at_fork,
)

PATIENT = 20.0


class Witness:
    def __init__(self, notes, name="one"):
        self.notes, self.name = notes, name

    def note(self, what):
        self.notes.append((self.name, what))


def watch(witness):
    at_fork(
        witness,
        before=lambda one: one.note("before"),
        in_parent=lambda one: one.note("parent"),
        in_child=lambda one: one.note("child"),
    )
    return witness


def notes_of_child(notes):
    """What was noted in a child, and what meanwhile in its parent."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, repr(notes).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told, notes


@pytest.fixture
def alone(monkeypatch):
    """Only whoever this test brings is told."""
    monkeypatch.setattr(forks, "_living", {})


def test_each_is_told_before_and_on_both_sides(alone):
    witness = watch(Witness([]))
    child, parent = notes_of_child(witness.notes)
    assert parent == [("one", "before"), ("one", "parent")]
    assert child == repr([("one", "before"), ("one", "child")])


def test_who_came_first_is_told_first(alone):
    notes = []
    witnesses = [watch(Witness(notes, name)) for name in "abc"]
    _, parent = notes_of_child(notes)
    assert [name for name, what in parent if what == "before"] == ["a", "b", "c"]
    assert len(witnesses) == 3


def test_only_the_child_need_be_told(alone):
    witness = Witness([])
    at_fork(witness, in_child=lambda one: one.note("child"))
    assert notes_of_child(witness.notes) == (repr([("one", "child")]), [])


def test_who_is_gone_is_neither_kept_nor_told(alone):
    notes = []
    witness = watch(Witness(notes))
    gone = weakref.ref(witness)
    del witness
    gc.collect()
    assert gone() is None
    assert forks._living == {}
    assert notes_of_child(notes) == ("[]", [])


def test_a_collection_in_the_middle_keeps_nobody_from_being_told(alone):
    """It may come at any allocation, and others go with it."""
    notes = []
    witness = watch(Witness(notes))
    others = [watch(Witness([])) for _ in range(500)]
    forget, threshold = (lambda *_: others.clear()), gc.get_threshold()
    gc.collect()
    gc.callbacks.append(forget)
    gc.set_threshold(200)
    try:
        _, parent = notes_of_child(notes)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(forget)
    assert parent == [("one", "before"), ("one", "parent")]
    assert witness.notes is notes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_of_one_keeps_it_from_no_other(alone, monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", lambda error: told.append(str(error.exc_value)))

    def fail(one):
        raise ValueError("no lock to be had")

    first, second = Witness([]), Witness([], "two")
    at_fork(first, before=fail, in_child=lambda one: None)
    watch(second)
    _, parent = notes_of_child(second.notes)
    assert parent == [("two", "before"), ("two", "parent")]
    assert told == ["no lock to be had"]


def test_apps_that_come_and_go_leave_nothing_to_tell(tmp_path):
    def open_and_close():
        with App(f"sqlite:///{tmp_path}/ledger.db") as app:

            @app.flow(key="{order}")
            def ship(order):
                return order

            ship("1001")

    open_and_close()
    gc.collect()
    before = len(forks._living)
    for _ in range(5):
        open_and_close()
    assert _settles(lambda: len(forks._living) <= before)


def _settles(holds):
    """Whether it comes to hold: a thread that is in the middle of its last turn has its owner for a moment longer."""
    for _ in range(200):
        gc.collect()
        if holds():
            return True
        time.sleep(0.01)
    return False


# -- background threads --------------------------------------------------------------------------


class Owner:
    """Counts its turns; `pause` is what each of them returns."""

    def __init__(self, pause=None, **options):
        self.turns, self.pause = threading.Semaphore(0), pause
        self.thread = BackgroundThread(self, Owner._turn, "test-background", **options)

    def _turn(self, run):
        self.turns.release()
        return self.pause


def alive():
    return [thread for thread in threading.enumerate() if thread.name == "test-background"]


def gone():
    """Whether all of them end soon."""
    for thread in alive():
        thread.join(PATIENT)
    return not alive()


def test_a_background_thread_is_started_once_and_waits_to_be_woken():
    owner = Owner()
    owner.thread.start()
    owner.thread.start()
    assert owner.turns.acquire(timeout=PATIENT)
    assert not owner.turns.acquire(timeout=0.02)
    owner.thread.wake()
    assert owner.turns.acquire(timeout=PATIENT)
    assert len(alive()) == 1
    owner.thread.stop()
    assert not alive()


def test_a_turn_comes_again_after_the_seconds_that_the_last_one_returned():
    owner = Owner(pause=0.001)
    owner.thread.start()
    assert all(owner.turns.acquire(timeout=PATIENT) for _ in range(5))
    owner.thread.stop()


def test_a_stop_between_a_turn_and_its_wait_is_not_slept_through(monkeypatch):
    owner, in_the_gap, go = Owner(pause=300.0), threading.Event(), threading.Event()
    receive = ThreadRun.receive

    def slowly(run, seconds):
        if seconds == 300.0:
            in_the_gap.set()
            go.wait(PATIENT)
        return receive(run, seconds)

    monkeypatch.setattr(ThreadRun, "receive", slowly)
    owner.thread.start()
    assert in_the_gap.wait(PATIENT)
    stopping = threading.Thread(target=owner.thread.stop)
    stopping.start()
    while owner.thread.started:
        pass
    go.set()
    stopping.join(PATIENT / 2)
    assert not stopping.is_alive()


def test_an_owner_that_was_never_stopped_is_collected_and_its_thread_ends():
    owner = Owner(pause=300.0)
    owner.thread.start()
    assert owner.turns.acquire(timeout=PATIENT)
    reference = weakref.ref(owner)
    while reference() is not None:  # the thread may still be in its turn
        owner = None
        gc.collect()
    assert gone()


def test_a_stop_waits_no_longer_than_its_grace():
    go = threading.Event()
    owner = Owner(grace=0.01)
    owner.thread = BackgroundThread(owner, lambda one, run: go.wait(PATIENT) and None, "test-background", grace=0.01)
    owner.thread.start()
    owner.thread.stop()
    assert len(alive()) == 1
    go.set()
    assert gone()


def test_a_thread_that_was_left_behind_takes_no_message_of_its_successor():
    go, served = threading.Event(), []

    def turn(one, run):
        served.append((run.message, threading.current_thread()))
        go.wait(PATIENT)

    owner = Owner()
    thread = BackgroundThread(owner, turn, "test-background", grace=0.0, finish=True)
    thread.send("first")
    while not served:
        pass
    thread.stop()
    thread.send("second")
    go.set()
    thread.stop(PATIENT)
    assert gone()
    assert [message for message, _ in served] == ["first", "second"]
    assert served[0][1] is not served[1][1]


@pytest.mark.parametrize("for_good", [False, True], ids=["for now", "for good"])
def test_a_stopped_thread_is_started_again_unless_it_was_stopped_for_good(for_good):
    owner = Owner()
    owner.thread.start()
    owner.thread.stop(for_good=for_good)
    owner.thread.start()
    assert owner.thread.started is not for_good
    owner.thread.stop()


def test_a_thread_that_cannot_be_started_is_tried_again_the_next_time(monkeypatch):
    owner = Owner()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr("threading.Thread.start", lambda thread: (_ for _ in ()).throw(RuntimeError("no more threads")))
        owner.thread.start()
    assert not owner.thread.started
    owner.thread.start()
    assert owner.turns.acquire(timeout=PATIENT)
    owner.thread.stop()


def test_after_a_fork_the_child_starts_a_thread_of_its_own():
    owner = Owner()
    owner.thread.start()
    assert owner.turns.acquire(timeout=PATIENT)
    child = os.fork()
    if child == 0:
        owner.thread.reset()
        owner.thread.start()
        os._exit(0 if owner.turns.acquire(timeout=PATIENT) else 1)
    assert os.waitpid(child, 0)[1] == 0
    owner.thread.stop()


# -- serial threads ------------------------------------------------------------------------------


def test_no_thread_is_started_before_it_is_needed():
    before = threading.active_count()
    SerialThread("idle").stop()
    assert threading.active_count() == before


def test_it_does_what_it_is_handed_in_order():
    thread, done, end = SerialThread("orderly"), [], threading.Event()
    for nth in range(100):
        thread.do(lambda nth=nth: done.append(nth))
    thread.do(end.set)
    assert end.wait(PATIENT)
    assert done == list(range(100))
    thread.stop()


def test_one_thread_does_it_all_however_many_hand_tasks_over():
    thread, names = SerialThread("single"), set()
    threads = [
        threading.Thread(target=lambda: thread.do(lambda: names.add(threading.current_thread().ident)))
        for _ in range(20)
    ]
    for other in threads:
        other.start()
    for other in threads:
        other.join()
    thread.stop()
    assert len(names) == 1


def test_stopping_finishes_what_was_handed_over():
    thread, done = SerialThread("thorough"), []
    for nth in range(50):
        thread.do(lambda nth=nth: done.append(nth))
    thread.stop()
    assert done == list(range(50))


def test_it_starts_again_after_it_was_stopped():
    thread, again = SerialThread("tireless"), threading.Event()
    thread.do(lambda: None)
    thread.stop()
    thread.do(again.set)
    assert again.wait(PATIENT)
    thread.stop()


def test_it_can_be_stopped_by_itself():
    thread, done = SerialThread("own"), threading.Event()

    def stop():
        thread.stop()
        done.set()

    thread.do(stop)
    assert done.wait(PATIENT)


def test_after_a_reset_it_has_a_thread_of_its_own():
    thread, done = SerialThread("forked"), threading.Event()
    thread.do(lambda: None)
    old = thread._thread._thread
    thread.reset()
    thread.do(done.set)
    assert done.wait(PATIENT)
    assert thread._thread._thread is not old
    thread.stop()


@pytest.mark.parametrize("error", [MemoryError("no room"), SystemExit(1)])
def test_an_error_of_one_task_is_logged_and_the_next_one_is_done(caplog, error):
    """Or later tasks would wait for ever."""

    def fails():
        raise error

    thread, done = SerialThread("test-thread"), threading.Event()
    thread.do(fails)
    thread.do(done.set)
    assert done.wait(PATIENT)
    assert type(error).__name__ in caplog.text
    thread.stop()


# -- spinning ------------------------------------------------------------------------------------

MOST = 50


class Answer:
    """There after so many looks; None: never."""

    def __init__(self, after):
        self.after = after
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return self.after is not None and self.looks >= self.after


def looks_for(spin, after):
    answer = Answer(after)
    spin.look(answer)
    return answer.looks


def test_an_answer_that_comes_soon_is_looked_for_until_it_is_there():
    spin = AdaptiveSpin(MOST)
    assert [looks_for(spin, after) for after in (1, 7, MOST, 1)] == [1, 7, MOST, 1]


def test_a_slow_server_is_looked_at_less_and_less():
    spin = AdaptiveSpin(MOST)
    tried = [nth for nth in range(10 * LONGEST_REST) if looks_for(spin, None)]
    pauses = [after - before - 1 for before, after in itertools.pairwise(tried)]
    assert pauses[:5] == [1, 3, 7, 15, 31]
    assert set(pauses[-3:]) == {LONGEST_REST}


def test_no_look_is_longer_than_falling_asleep():
    assert looks_for(AdaptiveSpin(MOST), None) == MOST


def test_a_server_that_has_become_quick_is_looked_at_again_each_time():
    spin = AdaptiveSpin(MOST)
    for _ in range(40):
        looks_for(spin, None)
    waited = next(nth for nth in range(LONGEST_REST + 1) if looks_for(spin, 1))
    assert waited > 0
    assert [looks_for(spin, 1) for _ in range(3)] == [1, 1, 1]


def test_threads_that_are_waited_for_together_are_counted_until_they_end():
    group, going_on = ThreadGroup(), threading.Event()
    assert group.join(0.0) == 0
    for number in range(3):
        group.start(going_on.wait if number else str, f"part-{number}")
    assert group.join(0.01) == 2
    going_on.set()
    assert group.join(PATIENT) == 0
