"""A claim held by this process: who is inside it, and whether it is still ours."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, Token

from ..drive import Operation
from ..stores.base import Store
from .outcomes import Held, LostHold
from .states import Ask

__all__ = ["INHERITED", "Hold", "come_outside", "enclosing", "go_inside"]

# In a forked child: it is the parent's, who is still at work. What the child says about it would be taken for the end.
INHERITED = LostHold("held", "")


class Hold:
    """A `Held` that heartbeats keep up to date. `lost` is set when the store says it is no longer ours."""

    __slots__ = ("active", "ask", "beat_at", "beating", "context", "ending", "held", "lost", "renew", "store", "token")

    def __init__(self, ask: Ask, held: Held) -> None:
        self.ask = ask
        self.held = held
        self.lost: LostHold | None = None
        self.active = True
        self.beat_at = 0.0
        self.beating = False
        self.ending = False  # its last write is under way: what becomes of the claim, that write's answer tells
        self.context: Context | None = None  # of whoever holds it: what is logged about it elsewhere is part of that
        self.renew: Callable[[Held], Operation[Held | LostHold]] | None = None  # None: as claims are renewed
        self.store: Store | None = None
        self.token: Token[tuple[Hold, ...]] | None = None


_inside: ContextVar[tuple[Hold, ...]] = ContextVar("twiceproof_inside", default=())


def go_inside(hold: Hold, store: Store) -> None:
    """From now on, a call for the same key from inside the work is part of it, not a duplicate."""
    hold.store = store
    hold.token = _inside.set((*_inside.get(), hold))


def come_outside(hold: Hold) -> None:
    # A task left behind keeps a copy of this context: what it holds on to must not open the door later.
    hold.active = False
    if hold.token is None:
        return
    try:
        _inside.reset(hold.token)
    except ValueError:  # left in another context than entered: a generator closed elsewhere, a pool's other thread
        _inside.set(tuple(other for other in _inside.get() if other is not hold))
    hold.token = None


def enclosing(space: str, store: Store) -> Hold | None:
    """The hold on this space that the caller is inside of, if any. Another store has claims of its own."""
    for hold in _inside.get():
        if hold.active and hold.ask.at.space == space and hold.store is store:
            return hold
    return None
