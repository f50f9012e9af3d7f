"""A turn: a guarded request whose claim is held, from the take to the last word about it."""

from __future__ import annotations

from ...claims.hold import Hold
from .visit import Visit

__all__ = ["Turn"]


class Turn:
    __slots__ = ("begun", "hold", "left", "visit")

    def __init__(self, visit: Visit, hold: Hold) -> None:
        self.visit = visit
        self.hold = hold
        self.begun = True  # False: the app says that the request was refused before its work began
        self.left = False  # whether the last word has been said

    @property
    def key(self) -> str:
        """What the client sent. A handler may pass it on."""
        return self.visit.key
