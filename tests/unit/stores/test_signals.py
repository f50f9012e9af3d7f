"""A signal's exception is for the caller whose thread it hit: neither told to others nor taken for an engine's."""

import functools
import signal
import threading

import pytest

from tests.unit.stores.group_work import PATIENT, Caller, Work, committer_of, in_line
from twiceproof.records import Address, Batch, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine
from twiceproof.threads import raised_by_signal_handler, reraise_signal_exception


class TimeIsUp(Exception):
    """As job runners raise it: an ordinary exception."""


def ring(number, frame):
    raise TimeIsUp


class Ringer:
    def ring(self, number, frame):
        raise TimeIsUp

    def __call__(self, number, frame):
        raise TimeIsUp


@pytest.fixture(
    params=[ring, Ringer().ring, Ringer(), functools.partial(ring)], ids=["def", "method", "object", "partial"]
)
def handler(request):
    before = signal.signal(signal.SIGALRM, request.param)
    yield request.param
    signal.signal(signal.SIGALRM, before)


def interrupted(*_):
    signal.raise_signal(signal.SIGALRM)


def test_a_signals_exception_is_known_by_the_way_it_came(handler):
    with pytest.raises(TimeIsUp) as caught:
        interrupted()
    assert raised_by_signal_handler(caught.value)


def test_the_same_exception_raised_by_the_work_itself_is_the_works(handler):
    with pytest.raises(TimeIsUp) as caught:
        raise TimeIsUp
    assert not raised_by_signal_handler(caught.value)


class DriversOwn(Exception):
    """What a driver makes of what it catches."""


def wrapped(work):
    try:
        work()
    except Exception as error:
        raise DriversOwn from error


def test_a_signals_exception_that_a_driver_has_wrapped_is_let_through(handler):
    with pytest.raises(TimeIsUp):
        try:
            wrapped(lambda: wrapped(interrupted))
        except DriversOwn as error:
            reraise_signal_exception(error)


def test_a_drivers_own_error_stays_one_while_the_caller_deals_with_a_signal(handler):
    """The twin: Python chains it to that one, too."""
    try:
        interrupted()
    except TimeIsUp:
        try:
            wrapped(lambda: int("x"))
        except DriversOwn as error:
            reraise_signal_exception(error)


def test_those_whom_the_interrupted_leads_for_are_not_told_its_exception(handler):
    work = Work()
    committer = committer_of(work)
    work.hold()
    first = Caller(committer, "first")
    assert work.begun.wait(PATIENT)
    others = []

    def gather_others():
        in_line(committer, 1)
        others.extend(Caller(committer, name) for name in ("second", "third"))
        in_line(committer, 3)
        committer._work = lambda items: interrupted() if is_main() else work(items)
        work.let_go()

    behind = threading.Thread(target=gather_others)
    behind.start()
    with pytest.raises(TimeIsUp):
        committer.request("leader").block()
    behind.join(PATIENT)
    assert first.result() == "FIRST"
    assert [caller.result() for caller in others] == ["SECOND", "THIRD"]
    assert not committer.busy


def is_main():
    return threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("landed", [True, False])
def test_callers_led_by_an_interrupted_one_hear_the_truth_about_their_writes(handler, landed):
    """What has landed is recognised by its nonce: it is no conflict with itself."""
    store = GroupedStore(MemoryEngine())
    commit, under_way, go = store.engine.commit, threading.Event(), threading.Event()

    def held_up(batches):
        under_way.set()
        assert go.wait(PATIENT)
        return commit(batches)

    def interrupted_for_others(batches):
        if not is_main():
            return commit(batches)
        if landed:
            commit(batches)
        return interrupted()

    store.engine.commit = held_up
    outcomes = {}

    def write(name):
        outcomes[name] = store.write(Insert(Address(name, "claim", "self"), "{}", draw=True)).block()

    first = threading.Thread(target=write, args=("first",))
    first.start()
    assert under_way.wait(PATIENT)
    others = [threading.Thread(target=write, args=(name,)) for name in ("second", "third")]

    def gather_others():
        in_line(store._writes, 1)
        for other in others:
            other.start()
        in_line(store._writes, 3)
        store.engine.commit = interrupted_for_others
        go.set()

    behind = threading.Thread(target=gather_others)
    behind.start()
    with pytest.raises(TimeIsUp):
        write("mine")
    for thread in (behind, first, *others):
        thread.join(PATIENT)
    for name in ("second", "third"):
        found = store.read(Address(name, "claim", "self")).block().record
        assert (type(outcomes[name]), outcomes[name].fence) == (Written, found.fence)
    assert not store._unacknowledged
    store.close()


def test_a_commit_for_many_does_not_go_on_as_if_there_had_been_no_signal(handler):
    store = GroupedStore(MemoryEngine())
    batches = [Batch((Insert(Address(name, "claim", "self"), "{}"),), name) for name in ("one", "two")]
    store.engine.commit = interrupted
    with pytest.raises(TimeIsUp):
        store._commit(batches)
    store.close()
