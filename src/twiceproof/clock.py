"""Injected time, ids and random numbers: nothing else in the package reads them by itself."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable

from .threads import at_fork

__all__ = ["Clock", "Ids", "jitter", "moment", "system_clock"]


class Clock:
    """A clock: `now` (wall time), `monotonic` (for local deadlines), `sleep`, and `rest`, which is awaited."""

    def __init__(
        self,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.now = now
        self.monotonic = monotonic
        self.sleep = sleep

    async def rest(self, seconds: float) -> None:
        """Sleep, awaited."""
        import asyncio  # a third of the import time, for programs that never await

        await asyncio.sleep(seconds)


system_clock = Clock()


def moment(at: float) -> str:
    """Return a time as `2026-03-01 09:30:00 UTC`. Stored texts name the time, not a duration: they are read later."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


class Ids:
    """Unique ids: a random stem per process and a counter. A forked child draws a new stem."""

    def __init__(self, prefix: Callable[[], str] = str, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._prefix = prefix
        self._entropy = entropy
        self._draw()
        at_fork(self, in_child=Ids._draw)

    def _draw(self) -> None:
        self._stem = f"{self._prefix()}{self._entropy(8).hex()}-"
        self._count = itertools.count(1)

    def __call__(self) -> str:
        return self._stem + str(next(self._count))


def jitter(span: float, roll: Callable[[], float] = random.random) -> float:
    """Return between half and the whole of `span`, so that retries of many processes spread."""
    return span * (0.5 + roll() / 2)
