"""Time, ids and dice, injected: nothing else in the package reads them by itself."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable

__all__ = ["Clock", "Ids", "jitter", "system_clock"]


class Clock:
    """Three ways to tell time: `now` (wall), `monotonic` (for local deadlines) and `sleep`."""

    def __init__(
        self,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.now = now
        self.monotonic = monotonic
        self.sleep = sleep


system_clock = Clock()


class Ids:
    """Unique ids: a random stem per process and a counter. A fork draws a new stem."""

    def __init__(self, prefix: Callable[[], str] = str, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._prefix = prefix
        self._entropy = entropy
        self._draw()

    def _draw(self) -> None:
        self._pid = os.getpid()
        self._stem = self._prefix() + self._entropy(8).hex()
        self._count = itertools.count(1)

    def __call__(self) -> str:
        if os.getpid() != self._pid:
            self._draw()
        return f"{self._stem}-{next(self._count):x}"


def jitter(span: float, roll: Callable[[], float] = random.random) -> float:
    """Between half of `span` and the whole of it, so that retries of many do not march in step."""
    return span * (0.5 + roll() / 2)
