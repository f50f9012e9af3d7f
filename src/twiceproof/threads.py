"""SerialExecutor, DelayedCall, SpinWait, fork hooks, signal-exception detection."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import CodeType
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "AdaptiveSpin",
    "DelayedCall",
    "SerialThread",
    "at_fork",
    "raised_by_signal_handler",
    "reraise_signal_exception",
]


class DelayedCall(threading.Thread):
    """As `threading.Timer`, and it can be told to hurry: a process that is ending may start no thread, and has this."""

    def __init__(self, seconds: float, do: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._seconds = seconds
        self._do = do
        self._word = threading.Event()
        self._cancelled = False

    def run(self) -> None:
        self._word.wait(self._seconds)
        if not self._cancelled:
            self._do()

    def run_now(self) -> None:
        self._word.set()

    def cancel(self) -> None:
        """What has begun goes on to its end."""
        self._cancelled = True
        self._word.set()


T = TypeVar("T")
Call = Callable[[Any], None]


class _Calls(NamedTuple):
    before: Call | None
    in_parent: Call | None
    in_child: Call


_living: dict[weakref.ref[Any], _Calls] = {}  # in the order of their making


def at_fork(
    one: T,
    *,
    in_child: Callable[[T], None],
    before: Callable[[T], None] | None = None,
    in_parent: Callable[[T], None] | None = None,
) -> None:
    """Each is called with `one`, which it must not keep alive: so a function or a class's method, no bound one."""
    _living[weakref.ref(one, _living.pop)] = _Calls(before, in_parent, in_child)


def _tell(which: Callable[[_Calls], Call | None]) -> None:
    """All of them, whatever befalls one: an error is told by the interpreter, as of any hook."""
    first: BaseException | None = None
    for reference in list(_living):  # no pairs: to make them may set off a collection, and with it shorten the dict
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
    before=lambda: _tell(lambda calls: calls.before),
    after_in_parent=lambda: _tell(lambda calls: calls.in_parent),
    after_in_child=lambda: _tell(lambda calls: calls.in_child),
)


LONGEST_REST = 1024  # answers


class AdaptiveSpin:
    """Of one connection, for whoever asks alone on it.

    A server on this machine answers while its caller is still falling asleep, and whoever has slept finds the caches
    cold. A server that takes longer is left in peace, but for one try among more and more answers. Where others wait
    for the interpreter it does not pay: each look hands it over.
    """

    def __init__(self, most: int) -> None:
        self._most = most  # looks, of a microsecond or less each
        self._rest = 0  # answers that are not glanced for yet
        self._last = 0  # how many that were the last time

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

Tasks = SimpleQueue["Callable[[], None] | None"]


class SerialThread:
    """One daemon thread, started when first needed, that does what it is handed, in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._mutex = threading.Lock()
        self._tasks: Tasks | None = None  # of the living thread; a thread that was told to end keeps its own
        self._thread: threading.Thread | None = None

    def do(self, task: Callable[[], None]) -> None:
        with self._mutex:
            if self._tasks is None:
                self._tasks = self._start()
            self._tasks.put(task)

    def stop(self, seconds: float | None = None) -> None:
        """Finish what was handed over, then end the thread; wait for it at most so long. Later comers start another."""
        with self._mutex:
            thread, tasks = self._thread, self._tasks
            self._thread = self._tasks = None
        if thread is None or tasks is None:
            return
        tasks.put(None)
        if thread is not threading.current_thread():
            thread.join(seconds)

    def __del__(self) -> None:
        """A store that nobody closed leaves no thread behind."""
        if self._tasks is not None:
            self._tasks.put(None)

    def _start(self) -> Tasks:
        tasks: Tasks = SimpleQueue()
        self._thread = threading.Thread(target=_run, args=(tasks,), name=self._name, daemon=True)
        self._thread.start()
        return tasks


def _run(tasks: Tasks) -> None:
    while (task := tasks.get()) is not None:
        try:
            task()
        except BaseException as error:  # if this thread ended, all who hand over later would wait for ever
            log.error("the store's thread goes on after an error that nobody was told: %r", error, exc_info=error)
        del task  # it knows the store, which need not live for as long as nothing else comes


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a signal's handler is on the way to where it was raised."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {code for number in signal.valid_signals() for code in _code_of(signal.getsignal(number))}
    return any(code in handlers for code in _way(error))


def reraise_signal_exception(error: BaseException) -> None:
    """For whoever takes an error for a broken connection. A time limit may well be told by a TimeoutError, and a driver
    makes an error of its own of that.
    """
    inner: BaseException | None = error
    while inner is not None:
        if raised_by_signal_handler(inner):
            raise inner
        inner = _made_of(inner)


def _made_of(error: BaseException) -> BaseException | None:
    """What was caught on the way to where this one was raised; not what a caller of ours was just dealing with."""
    inner, step = error.__context__, error.__traceback__
    while inner is not None and inner.__traceback__ is not None and step is not None:
        if step.tb_frame is inner.__traceback__.tb_frame:
            return inner
        step = step.tb_next
    return None


def _way(error: BaseException) -> Iterator[CodeType]:
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
