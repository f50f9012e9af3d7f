"""Time, ids and dice, injected: nothing else in the package reads them by itself."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable

from .threads import at_fork

__all__ = ["Clock", "Ids", "jitter", "moment", "system_clock"]


class Clock:
    """Ways to tell time: `now` (wall), `monotonic` (for local deadlines), and to let it go by: `sleep` and `rest`."""

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
        """`sleep` for those who await."""
        import asyncio  # a third of the import time, for those who never await

        await asyncio.sleep(seconds)


system_clock = Clock()


def moment(at: float) -> str:
    """`2026-03-01 09:30:00 UTC`, for people. What is written down says when, not in how long: it is read later."""
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
    """Between half of `span` and the whole of it, so that retries of many do not march in step."""
    return span * (0.5 + roll() / 2)
