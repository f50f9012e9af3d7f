"""Forks: who lives is told, in order, and who is gone leaves nothing behind."""

import gc
import os
import weakref

import pytest

from twiceproof import App
from twiceproof import threads as forks
from twiceproof.threads import at_fork


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
    gc.collect()
    assert len(forks._living) == before
