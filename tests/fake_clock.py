"""A clock that tests move by hand, so that a lease of an hour lapses in a microsecond."""

from __future__ import annotations

from twiceproof.clock import Clock

__all__ = ["FakeClock"]


class FakeClock(Clock):
    """Wall and monotonic time stand still until they are moved. A sleep moves both, and takes no time."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        super().__init__(now=lambda: self.wall, monotonic=lambda: self.ticks, sleep=self.advance)
        self.wall = wall
        self.ticks = 0.0

    def advance(self, seconds: float) -> None:
        """Time goes by."""
        self.wall += seconds
        self.ticks += seconds

    def set_wall(self, seconds: float) -> None:
        """Somebody sets the wall clock forwards or back; the monotonic one does not notice."""
        self.wall += seconds
