"""What a take can answer. Values, not exceptions: `match` reads aloud, and every case is met."""

from __future__ import annotations

from msgspec import Raw, Struct

from ..records import Address
from .claim import Fault, Spill

__all__ = ["Busy", "Done", "Failed", "Held", "InReview", "LostHold", "Mismatch", "Parked", "TakeOutcome"]


class Held(Struct, frozen=True, gc=False):
    """The claim is ours. Every later write of ours carries the fence; nothing is done past the deadline."""

    at: Address
    fence: int
    owner: str
    attempt: int
    run: str
    lease: float
    deadline: float  # local, monotonic: counted from before the store was asked
    queue: str = ""  # where a lapsed run is found by workers
    taken_at: float = 0.0  # the store's time


class Busy(Struct, frozen=True, gc=False):
    """Somebody else is at work."""

    owner: str
    retry_after: float
    run: str


class Done(Struct, frozen=True, gc=False):
    """The work was done before. `result` is its JSON, byte for byte; empty if it is elsewhere (`spill`) or gone."""

    at: Address
    result: Raw
    spill: Spill | None
    run: str
    finished_at: float
    kept_until: float | None = None  # when the key may be forgotten; None: never
    loose: bool = False  # its result did not fit its declared type then, or was said by a person


class Failed(Struct, frozen=True, gc=False):
    """The work failed before. Retryable ones are simply taken again: only a look shows them so."""

    fault: Fault
    retryable: bool
    run: str


class InReview(Struct, frozen=True, gc=False):
    """The outcome is unknown: a person must settle it."""

    reason: str
    run: str
    since: float


class Mismatch(Struct, frozen=True, gc=False):
    """The key is known, with another payload."""

    found: str
    asked: str
    state: str
    run: str


class Parked(Struct, frozen=True, gc=False):
    """Only runs: nobody is at work now. Left to a worker, or waiting for a timer, a callback, a person."""

    state: str
    why: str
    run: str
    until: float | None = None  # when it goes on by itself; None: not before something arrives


TakeOutcome = Held | Busy | Done | Failed | InReview | Mismatch | Parked


class LostHold(Struct, frozen=True, gc=False):
    """A holder's write was refused: the claim is no longer its own. What it found out is now evidence."""

    state: str  # what the claim is now; "" if it is gone
    owner: str
