"""An errand: something to be done after a while, on a thread of its own, or at once when there is no more time."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Errand"]


class Errand(threading.Thread):
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

    def hurry(self) -> None:
        self._word.set()

    def cancel(self) -> None:
        """What has begun goes on to its end."""
        self._cancelled = True
        self._word.set()
