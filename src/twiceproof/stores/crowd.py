"""How many callers are around: those who wait, and those who were answered and are about to come back."""

from __future__ import annotations

__all__ = ["Crowd"]

SMALLEST_HALF = 8  # fewer are not worth a commit of their own


class Crowd:
    """A guess, for speed alone: nobody says goodbye, and two threads may count at once."""

    def __init__(self) -> None:
        self._answered = 0  # how many were, last time
        self._away = 0  # how many of those, and of those before them, have not come back

    def came(self) -> None:
        self._away -= 1

    def left(self, answered: int) -> None:
        """Who has been away for two groups may never come back: fewer and fewer of those are counted on."""
        stragglers = max(0, min(self._away, self._answered)) * 7 // 8
        self._answered, self._away = answered, answered + stragglers

    def half(self, waiting: int) -> int:
        around = waiting + max(0, self._away)
        return max(SMALLEST_HALF, (around + 1) // 2)
