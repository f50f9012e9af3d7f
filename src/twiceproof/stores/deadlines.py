"""Cuts connections that give no answer in time, from a separate thread: a caller blocked on a silent connection cannot
do it itself.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

from ..threads import BackgroundThread, ThreadRun, at_fork

__all__ = ["Deadlines", "deadlines"]


log = logging.getLogger("twiceproof")

TICK = 1.0
LINGER = 10  # idle ticks before the thread sleeps: statements and transactions come one after the other

Act = Callable[[], None]


class Deadlines:
    """One thread for the whole process, started when first needed. Uses real time: threads have no other clock."""

    def __init__(self) -> None:
        self._thread = BackgroundThread(self, Deadlines._turn, "twiceproof-deadlines")
        self._reset()
        at_fork(self, in_child=Deadlines._reset)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._watched: dict[int, tuple[float, Act]] = {}
        self._numbers = 0
        self._idle = 0  # ticks
        self._wakes_at = 0.0
        self._thread.reset()

    @contextlib.contextmanager
    def after(self, *stages: tuple[float, Act]) -> Iterator[None]:
        """Call each `act` after so many seconds, unless the block ends before."""
        mine = [self._watch(seconds, act) for seconds, act in stages]
        try:
            yield
        finally:
            for number in mine:
                self._watched.pop(number, None)

    def _watch(self, seconds: float, act: Act) -> int:
        at = time.monotonic() + seconds
        with self._mutex:
            self._numbers += 1
            number = self._numbers
            self._watched[number] = at, act
            sooner = at < self._wakes_at
        if sooner:
            self._thread.wake()
        else:
            self._thread.start()
        return number

    def _turn(self, _: ThreadRun) -> float | None:
        for number, (at, act) in list(self._watched.items()):
            if at <= time.monotonic() and self._watched.pop(number, None) is not None:
                _do(act)
        with self._mutex:
            self._idle = 0 if self._watched else self._idle + 1
            wait = self._wait()
            self._wakes_at = math.inf if wait is None else time.monotonic() + wait
            return wait

    def _wait(self) -> float | None:
        if self._idle > LINGER:
            return None
        first = min((at for at, _ in list(self._watched.values())), default=math.inf)
        return min(TICK, max(0.0, first - time.monotonic()))


def _do(act: Act) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - if this thread ends, no deadline is enforced any more
        log.warning("a connection whose time is over could not be cut: %s", error)


deadlines = Deadlines()
