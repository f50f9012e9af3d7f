"""Background threads, delayed calls, calls with a time limit, fork hooks, spinning before sleeping, and exceptions
raised by signal handlers.

Fork hooks: the interpreter keeps everything given to `os.register_at_fork` until it exits, so there is one hook that
calls the living objects by weak reference. A process that had opened thousands of apps would otherwise pay for all of
them at every fork.

An exception raised by a signal handler (a job runner's soft time limit) hits the main thread wherever it is. It is
meant for the interrupted caller: work done on behalf of many callers must neither swallow it nor report it to the
others.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from types import CodeType
from typing import Any, Generic, NamedTuple, TypeVar

__all__ = [
    "AdaptiveSpin",
    "BackgroundThread",
    "DelayedCall",
    "SerialThread",
    "ThreadGroup",
    "ThreadRun",
    "at_fork",
    "call_within",
    "raised_by_signal_handler",
    "reraise_signal_exception",
    "run_within",
    "start_thread",
]


T = TypeVar("T")


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread: it cannot keep the process from ending."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


class DelayedCall(threading.Thread):
    """As `threading.Timer`, and it can be made to run now: a process that is ending can start no thread.

    Unlike a `BackgroundThread` it keeps alive what it calls: what was counted or noted is not lost with its owner.
    """

    def __init__(self, seconds: float, do: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._seconds = seconds
        self._do = do
        self._due = threading.Event()
        self._cancelled = False

    def run(self) -> None:
        self._due.wait(self._seconds)
        if not self._cancelled:
            self._do()

    def run_now(self) -> None:
        self._due.set()

    def cancel(self) -> None:
        """A call that has begun runs to its end."""
        self._cancelled = True
        self._due.set()


def run_within(seconds: float, work: Callable[[], object], name: str) -> bool:
    """Do the last work of something that stops, and wait for it at most so long. Return whether it is done.

    A process that is ending can start no thread: then it is done on this one.
    """
    try:
        thread = start_thread(work, name)
    except RuntimeError:
        work()
        return True
    thread.join(seconds)
    return not thread.is_alive()


def call_within(
    seconds: float, calls: Sequence[Callable[[], T]], name: str, *, at_once: int = 8
) -> list[T | Exception | None]:
    """Make calls on a few daemon threads, and leave them behind when the time is over.

    The result of a call that raised is its error; of one that is still running, TimeoutError; of one that had not
    begun, None: it never begins.
    """
    results: list[T | Exception | None] = [None] * len(calls)
    waiting = list(enumerate(calls))[::-1]
    mutex, done = threading.Lock(), threading.Event()
    left = [len(calls)]

    def work() -> None:
        while True:
            with mutex:
                if not waiting:
                    return
                at, call = waiting.pop()
                results[at] = TimeoutError()
            result = _result_or_error(call)
            with mutex:
                results[at] = result
                left[0] -= 1
                if left[0] == 0:
                    done.set()

    for _ in calls[:at_once]:
        start_thread(work, name)
    if calls:
        done.wait(max(0.0, seconds))
    with mutex:
        waiting.clear()
        return list(results)


def _result_or_error(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the caller gets it as the result
        return error


class ThreadGroup:
    """Daemon threads that end by themselves once their work is told to, and are waited for together."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], object], name: str) -> None:
        self._threads.append(start_thread(work, name))

    def join(self, seconds: float) -> int:
        """Wait for all of them, at most so long. Return how many have not ended by then."""
        until = time.monotonic() + seconds  # of threads, which no injected clock moves
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)


Owner = TypeVar("Owner")
Call = Callable[[Any], None]


class _Calls(NamedTuple):
    before: Call | None
    in_parent: Call | None
    in_child: Call


_living: dict[weakref.ref[Any], _Calls] = {}  # in the order of registration


def at_fork(
    one: T,
    *,
    in_child: Callable[[T], None],
    before: Callable[[T], None] | None = None,
    in_parent: Callable[[T], None] | None = None,
) -> None:
    """Call these with `one` at each fork, for as long as it lives: functions or a class's methods, not bound ones."""
    _living[weakref.ref(one, _living.pop)] = _Calls(before, in_parent, in_child)


def _call_all(which: Callable[[_Calls], Call | None]) -> None:
    """Call all of them, even if one fails: the interpreter reports the first error, as of any hook."""
    first: BaseException | None = None
    for reference in list(_living):  # not items(): making pairs may start a collection, which shortens the dict
        one, calls = reference(), _living.get(reference)
        call = which(calls) if calls is not None else None
        if one is None or call is None:
            continue
        try:
            call(one)
        except BaseException as error:  # noqa: BLE001 - raised below
            first = first or error
    if first is not None:
        raise first


os.register_at_fork(
    before=lambda: _call_all(lambda calls: calls.before),
    after_in_parent=lambda: _call_all(lambda calls: calls.in_parent),
    after_in_child=lambda: _call_all(lambda calls: calls.in_child),
)


LONGEST_REST = 1024  # replies


class AdaptiveSpin:
    """Spin for a reply before sleeping: for a caller that is alone on its connection.

    A server on this machine replies while its caller is still falling asleep, and a caller that has slept finds the
    caches cold. A slower server is spun for once among more and more replies. With other threads waiting for the
    interpreter it does not pay: each look hands it over.
    """

    def __init__(self, most: int) -> None:
        self._most = most  # looks, of a microsecond or less each
        self._rest = 0  # replies left until the next try
        self._last = 0  # how many there were the last time

    def look(self, there: Callable[[], bool]) -> None:
        if self._rest:
            self._rest -= 1
            return
        for _ in range(self._most):
            if there():
                self._last = 0
                return
        self._last = self._rest = min(2 * self._last + 1, LONGEST_REST)


log = logging.getLogger("twiceproof")

_STOP = object()


class ThreadRun:
    """One start of a `BackgroundThread`: its mailbox, and whether it was stopped.

    Each start has its own: a thread that was left behind, blocked on a silent network, never takes the messages of its
    successor.
    """

    __slots__ = ("_messages", "_woken", "message", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        self.message: Any = None  # what the current turn was called for; None: its time has come, or `wake`
        # Not an Event: `wake` may be called by a signal handler or a finalizer, while this thread holds any lock.
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._woken = False

    def send(self, message: object) -> None:
        self._messages.put(message)

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._messages.put(None)

    def stop(self) -> None:
        self.stopped = True
        self._messages.put(_STOP)

    def receive(self, seconds: float | None) -> bool:
        """Wait for a message, at most so long. False: all that was sent before the stop has been received."""
        try:
            self.message = self._messages.get(timeout=seconds)
        except Empty:
            self.message = None
        if self.message is None:
            self._woken = False
        return self.message is not _STOP


class BackgroundThread(Generic[Owner]):
    """One daemon thread, started when first needed, that calls `turn(owner, run)` again and again.

    `turn` returns after how many seconds it is to be called next (None: not before `wake` or `send`). In between, the
    thread has a weak reference only, and ends when the owner is collected: an app that was never closed leaves no
    thread behind. So `turn` is a function or a class's method, not a bound one.

    `grace`: for how many seconds `stop` waits for the thread. `finish`: messages that were sent before are served.
    """

    def __init__(
        self,
        owner: Owner,
        turn: Callable[[Owner, ThreadRun], float | None],
        name: str,
        *,
        grace: float | None = None,
        finish: bool = False,
    ) -> None:
        self._owner = weakref.ref(owner)
        self._turn = turn
        self._name = name
        self._grace = grace
        self._finish = finish
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._run: ThreadRun | None = None
        self._ended = False

    @property
    def started(self) -> bool:
        return self._run is not None

    def start(self, after: float = 0.0) -> None:
        """Start it unless it is, or was stopped for good. RuntimeError: no thread can be had now.

        `after`: seconds until its first turn.
        """
        if self._run is None:
            with self._mutex:
                if self._run is None and not self._ended:
                    self._run = self._start(after)

    def wake(self) -> None:
        if self._run is not None:
            self._run.wake()

    def send(self, message: object) -> None:
        """Start it if need be, and call `turn` with this message."""
        with self._mutex:
            if self._run is None:
                self._run = self._start(None)
            self._run.send(message)

    def stop(self, grace: float | None = None, *, for_good: bool = False) -> None:
        """End the thread and wait for it, at most `grace` seconds. It may be started again unless `for_good`."""
        with self._mutex:
            self._ended = for_good
            thread, run = self._thread, self._run
            self._thread = self._run = None
        if thread is None or run is None:
            return
        run.stop()
        if thread is not threading.current_thread():
            thread.join(self._grace if grace is None else grace)

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self, after: float | None) -> ThreadRun:
        run = ThreadRun()
        owner = weakref.ref(self._owner(), lambda _: run.wake())
        arguments = (owner, self._turn, run, after, self._finish)
        thread = threading.Thread(target=_serve, args=arguments, name=self._name, daemon=True)
        thread.start()
        self._thread = thread  # not before: one that could not be started would be relied on for ever
        return run


def _serve(
    reference: weakref.ref[Any],
    turn: Callable[[Any, ThreadRun], float | None],
    run: ThreadRun,
    pause: float | None,
    finish: bool,
) -> None:
    while run.receive(pause) and (finish or not run.stopped):
        owner = reference()
        if owner is None:
            return
        pause = turn(owner, run)
        del owner
        run.message = None  # a task knows its store, which need not live for as long as nothing else comes


class SerialThread:
    """One daemon thread, started when first needed, that does what it is handed, in order."""

    def __init__(self, name: str) -> None:
        self._thread = BackgroundThread(self, SerialThread._work, name, finish=True)

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._thread.reset()

    def do(self, task: Callable[[], None]) -> None:
        self._thread.send(task)

    def stop(self, seconds: float | None = None) -> None:
        """Finish what was handed over, then end the thread; wait for it at most so long. Later tasks start another."""
        self._thread.stop(seconds)

    def _work(self, run: ThreadRun) -> None:
        try:
            if run.message is not None:
                run.message()
        except BaseException as error:  # if this thread ended, later tasks would wait for ever
            log.error("the store's thread continues after an error that no caller received: %r", error, exc_info=error)


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler is in its traceback."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {code for number in signal.valid_signals() for code in _code_of(signal.getsignal(number))}
    return any(code in handlers for code in _codes_of_traceback(error))


def reraise_signal_exception(error: BaseException) -> None:
    """Raise it again if a signal handler raised it, before it is taken for a broken connection: a time limit may raise
    TimeoutError, and a driver wraps that in an error of its own.
    """
    inner: BaseException | None = error
    while inner is not None:
        if raised_by_signal_handler(inner):
            raise inner
        inner = _wrapped_by(inner)


def _wrapped_by(error: BaseException) -> BaseException | None:
    """The error that was caught where this one was raised; not one that a caller of ours was just handling."""
    inner, step = error.__context__, error.__traceback__
    while inner is not None and inner.__traceback__ is not None and step is not None:
        if step.tb_frame is inner.__traceback__.tb_frame:
            return inner
        step = step.tb_next
    return None


def _codes_of_traceback(error: BaseException) -> Iterator[CodeType]:
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame.f_code
        step = step.tb_next


def _code_of(handler: Any) -> Iterator[CodeType]:
    """Of a function, a method, a partial, or an object that is called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for place in (handler, type(handler).__dict__.get("__call__")):
        code = getattr(place, "__code__", None)
        if isinstance(code, CodeType):
            yield code
