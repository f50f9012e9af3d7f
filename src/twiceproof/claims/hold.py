"""A claim held by this process: who is inside it, and whether it is still ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from .outcomes import Held, LostHold
from .states import Ask

__all__ = ["Hold", "enclosing", "entered"]


class Hold:
    """A `Held` that heartbeats keep up to date. `lost` is set when the store says it is no longer ours."""

    __slots__ = ("active", "ask", "beat_at", "held", "lost")

    def __init__(self, ask: Ask, held: Held) -> None:
        self.ask = ask
        self.held = held
        self.lost: LostHold | None = None
        self.active = True
        self.beat_at = 0.0


_inside: ContextVar[tuple[Hold, ...]] = ContextVar("twiceproof_inside", default=())


@contextlib.contextmanager
def entered(hold: Hold) -> Iterator[None]:
    """While the work runs, a call for the same key from inside it is part of it, not a duplicate."""
    token = _inside.set((*_inside.get(), hold))
    try:
        yield
    finally:
        # A task left behind keeps a copy of this context: what it holds on to must not open the door later.
        hold.active = False
        _inside.reset(token)


def enclosing(space: str) -> Hold | None:
    """The hold on this space that the caller is inside of, if any."""
    return next((hold for hold in _inside.get() if hold.active and hold.ask.at.space == space), None)
