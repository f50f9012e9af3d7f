"""Work that a test can hold up, so that others committer behind it."""

import threading

from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.group_commit import GroupCommitter
from twiceproof.threads import SerialThread

PATIENT = 20.0


class Work:
    """Answers each item with itself in capitals. `hold` keeps the next group until `let_go`."""

    def __init__(self, answer=str.upper):
        self.answer = answer
        self.groups = []
        self.threads = []
        self.begun = threading.Event()
        self._go = threading.Event()
        self._go.set()

    def __call__(self, items):
        self.groups.append(list(items))
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        assert self._go.wait(PATIENT)
        return [self.answer(item) for item in items]

    def hold(self):
        self._go.clear()
        self.begun.clear()

    def let_go(self):
        self._go.set()


def committer_of(work, **options):
    """A committer whose pauses take no time and move its clock."""
    clock = ManualClock()
    options = {
        "limit": 500,
        "thread": SerialThread("the thread"),
        "sleep": clock.sleep,
        "monotonic": clock.monotonic,
        "patience": 1.0,
    } | options
    return GroupCommitter(work, **options)


def in_line(committer, count):
    """Wait until so many stand in the queue. A spin of microseconds: the others are on their way."""
    for _ in range(10_000_000):
        if len(committer._queue) >= count:
            return
    raise AssertionError("They never came.")


class Caller(threading.Thread):
    """Asks on a thread of its own; `result` waits for the answer or raises the error."""

    def __init__(self, committer, item):
        super().__init__(daemon=True)
        self.committer, self.item = committer, item
        self.answer = self.error = None
        self.start()

    def run(self):
        try:
            self.answer = self.committer.request(self.item).block()
        except BaseException as error:  # noqa: BLE001 - told by `result`
            self.error = error

    def result(self):
        self.join(PATIENT)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.answer
