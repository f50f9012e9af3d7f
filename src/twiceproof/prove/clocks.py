"""Clocks that a test can move, so that no test sleeps to wait for time."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..clock import Clock

__all__ = ["BEGINNING", "ManualClock", "ShiftedClock", "clock_at"]


BEGINNING = 1_700_000_000.0
BREATH = 0.05


class ShiftedClock(Clock):
    """The system's clock with an adjustable offset. Pauses are real: threads and processes can wait for each other."""

    def __init__(self) -> None:
        super().__init__(now=lambda: time.time() + self.shift)
        self.shift = 0.0

    def advance(self, seconds: float) -> None:
        self.shift += seconds


class ManualClock(Clock):
    """Stands still until it is moved. A pause moves it and takes no time; with `crowd`, hardly any."""

    def __init__(self, start: float = BEGINNING) -> None:
        super().__init__(now=lambda: self.wall, monotonic=lambda: self.ticks, sleep=self._pause)
        self.wall = start
        self.ticks = 0.0
        self.pauses: list[float] = []
        self.crowd = 1  # how many wait at the same time: the same seconds pass for all of them
        self.told: Callable[[float], object] = lambda wall: None  # called with the wall time when it has moved

    def advance(self, seconds: float) -> None:
        """Move time forwards."""
        self.wall += seconds
        self.ticks += seconds
        self.told(self.wall)

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock forwards or back; the monotonic clock does not change."""
        self.wall += seconds

    async def rest(self, seconds: float) -> None:
        self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.crowd > 1:  # otherwise the waiting ones would outlive the worker's lease at once
            time.sleep(min(seconds, BREATH))
        self.advance(seconds / self.crowd)


def clock_at(wall: float | None) -> ManualClock:
    """A clock that continues from another's time, or from the beginning."""
    return ManualClock() if wall is None else ManualClock(wall)
