"""Glances: looking a few times whether an answer is there, before going to sleep for it."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Glances"]

LONGEST_REST = 1024  # answers


class Glances:
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
