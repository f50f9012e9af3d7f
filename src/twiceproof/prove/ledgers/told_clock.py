"""A clock that tells a server what time it is: the store's own clock stands still with the play's."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..clocks import BEGINNING, ManualClock

__all__ = ["ToldClock"]


class ToldClock(ManualClock):
    """`tell` is called with the wall time, at first and whenever it has moved."""

    def __init__(self, tell: Callable[[float], object], at: float | None = None) -> None:
        super().__init__(BEGINNING if at is None else at)
        self._tell = tell
        self._mutex = threading.Lock()
        tell(self.wall)

    def advance(self, seconds: float) -> None:
        with self._mutex:  # two threads that pause at once must not set the server's clock back
            super().advance(seconds)
            self._tell(self.wall)
