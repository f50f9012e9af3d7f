"""Cut connections of transactions that take too long, from a separate thread: a caller blocked on a silent connection
cannot do it itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from ..threads import at_fork

__all__ = ["Deadlines", "deadlines"]


log = logging.getLogger("twiceproof")

TICK = 1.0
LINGER = 10  # idle ticks before the thread sleeps: transactions come one after the other

Act = Callable[[], None]


class Deadlines:
    """One thread for the whole process, started when first needed. Uses real time: threads have no other clock."""

    def __init__(self) -> None:
        self._reset()
        at_fork(self, in_child=Deadlines._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._watched: dict[int, tuple[float, Act]] = {}
        self._numbers = 0
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

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
        with self._changed:
            self._numbers += 1
            self._watched[self._numbers] = at, act
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="twiceproof-deadlines", daemon=True)
                thread.start()
                self._thread = thread
            elif at < self._wakes_at:
                self._changed.notify()
            return self._numbers

    def _run(self) -> None:
        idle = 0
        while True:
            with self._changed:
                idle = 0 if self._watched else idle + 1
                wait = self._wait(idle)
                self._wakes_at = time.monotonic() + wait
                self._changed.wait(wait)
            for number, (at, act) in list(self._watched.items()):
                if at <= time.monotonic() and self._watched.pop(number, None) is not None:
                    _do(act)

    def _wait(self, idle: int) -> float:
        if idle > LINGER:
            return threading.TIMEOUT_MAX / 2
        first = min((at for at, _ in self._watched.values()), default=0.0) if self._watched else 0.0
        return min(TICK, max(0.0, first - time.monotonic())) if self._watched else TICK


def _do(act: Act) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - if this thread ends, no deadline is enforced any more
        log.warning("a transaction whose time is over could not be ended: %s", error)


deadlines = Deadlines()
