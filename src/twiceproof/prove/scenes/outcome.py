"""What a play came to: plain data, so that it can be told by a child process."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["ACTS", "BODY", "REFUSED", "Awaited", "Beat", "Outcome"]

ACTS, REFUSED = " acts", " is refused"  # how beats about steps end
BODY = "outside of any step"


class Beat(Struct, frozen=True):
    """One moment of a play, for the picture of it. `world` is what the outside gained in it."""

    process: int
    what: str
    world: dict[str, int] = {}


class Awaited(Struct, frozen=True):
    """Something that the run waited for, and that somebody was there to send."""

    name: str
    approval: bool
    ends: bool  # whether its time can run out


class Outcome(Struct, frozen=True):
    """`state` is the run's; `seen` what the outside holds at the end; `points` how far a process that lives gets."""

    state: str
    result: str = ""
    seen: dict[str, int] = {}
    beats: tuple[Beat, ...] = ()
    writes: int = 0
    effects: tuple[str, ...] = ()  # the steps that acted, in order
    fired: int = 0  # faults that came about, odd arrivals among them
    error: str = ""  # why there was nothing to compare
    arrivals: dict[str, int] = {}  # callbacks and decisions that the ledger took as the first
    awaited: tuple[Awaited, ...] = ()
    answers: tuple[str, ...] = ()
    why: str = ""  # what the last caller was told instead of a result
    cut: tuple[str, ...] = ()  # connections from before the play, which it may not use
