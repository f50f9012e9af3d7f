"""Why a run stops and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, structs

from ...claims.claim import DONE, FAILED, QUEUED, REVIEW, WAITING, Claim, Fault, body_of
from ...claims.results import Packed
from ...claims.states import Lifetime, finish_times
from ...errors import Stale
from ...records import Address, Replace, Write

__all__ = [
    "End",
    "Ended",
    "Finished",
    "GiveBack",
    "HandedBack",
    "Review",
    "Reviewed",
    "RunFailed",
    "Stop",
    "Superseded",
    "Suspended",
    "Undo",
    "Wait",
    "as_done",
    "as_failed",
    "as_queued",
    "as_review",
    "as_waiting",
    "merged",
]


End = Callable[[int], Replace]


class Finished(Struct, frozen=True):
    """The flow returned this."""

    value: Any


class RunFailed(Struct, frozen=True):
    """The flow failed for good. `undone` says what became of what it did."""

    error: BaseException
    undone: str = ""


class Suspended(Struct, frozen=True):
    """The run waits, and holds nothing."""

    why: str
    until: float | None


class Superseded(Struct, frozen=True):
    """Done, and not applied: a newer version of its object was."""

    error: Stale


class Reviewed(Struct, frozen=True):
    """A person must decide. `error`: what was raised, where that is why."""

    reason: str
    error: Exception | None = None


class HandedBack(Struct, frozen=True):
    """The process was told to stop: whoever comes next goes on."""

    error: BaseException


Ended = Finished | RunFailed | Suspended | Superseded | Reviewed | HandedBack


def as_done(at: Address, claim: Claim, packed: Packed, life: Lifetime) -> End:
    queue, due_in, keep = finish_times(DONE, life)
    body = body_of(structs.replace(claim, result=packed.inline, spill=packed.spill, keep=keep))
    return lambda fence: Replace(at, body, DONE, fence=fence, draw=True, queue=queue, due_in=due_in)


def as_failed(at: Address, claim: Claim, fault: Fault, life: Lifetime) -> End:
    queue, due_in, _ = finish_times(FAILED, life)
    body = body_of(structs.replace(claim, fault=fault))
    return lambda fence: Replace(at, body, FAILED, fence=fence, draw=True, queue=queue, due_in=due_in)


def as_review(at: Address, claim: Claim, reason: str) -> End:
    body = body_of(structs.replace(claim, reason=reason))
    return lambda fence: Replace(at, body, REVIEW, fence=fence, draw=True)


def as_waiting(at: Address, claim: Claim, why: str, queue: str, seconds: float | None) -> End:
    body = body_of(structs.replace(claim, reason=why))
    return lambda fence: Replace(at, body, WAITING, fence=fence, draw=True, queue=queue, due_in=seconds)


def as_queued(at: Address, claim: Claim, queue: str, delay: float = 0.0) -> End:
    body = body_of(claim)
    return lambda fence: Replace(at, body, QUEUED, fence=fence, draw=True, queue=queue, due_in=delay)


SOON = 15 * 60.0


WAITS_FOR_RUN = "waits for the run of "  # begins the words of a run that waits for another
INNER_REVIEW = "what it called waits for a person"  # stands in those of one whose other is in review
NOT_AWAITED = "was called and never awaited"  # stands in those of one whose flow forgot an await
BROKE = "its own code broke off with "  # begins those of one whose body has a programming error
NOT_UNDONE = "it could not be undone"  # begins those of one whose undo could not even be begun


class Wait(Struct, frozen=True):
    """Parked: nobody is at work until `seconds` have gone by (None: until something arrives).

    `unless` are writes that must hold as it goes to sleep: a callback that came in meanwhile must not be slept through.
    `runs` are those it waits for, which live elsewhere: they are looked at once more when it has lain down.
    """

    why: str
    seconds: float | None
    unless: Sequence[Write] = ()
    runs: tuple[str, ...] = ()


class Review(Struct, frozen=True):
    """A person must decide: about this run, or about those of `runs` that it called."""

    reason: str
    runs: tuple[str, ...] = ()
    error: Exception | None = None  # what was raised, where that is why


class Undo(Struct, frozen=True):
    """Somebody's word: undo what was done, and stop."""


class GiveBack(Struct, frozen=True):
    """The worker is told to stop: whoever comes next goes on with the next step."""


Stop = Wait | Review | Undo | GiveBack


def merged(stops: Sequence[Stop]) -> Stop:
    """What a run does whose branches stopped for several reasons.

    It goes on with what goes on soon, and only then waits for a person: one unknown outcome must not hold up the rest.
    """
    for word in (Undo, GiveBack):
        if any(isinstance(stop, word) for stop in stops):
            return word()
    waits = sorted((stop for stop in stops if isinstance(stop, Wait)), key=_when)
    reviews = [stop for stop in stops if isinstance(stop, Review)]
    if reviews and not (waits and _when(waits[0]) <= SOON):
        return Review(reviews[0].reason + _more(len(reviews)), reviews[0].runs, reviews[0].error)
    unless = {write.at: write for wait in waits for write in wait.unless}
    runs = tuple(run for wait in waits for run in wait.runs)
    why = next((wait.why for wait in waits if wait.runs), waits[0].why)  # by these words a run that ends wakes it
    return Wait(why + _more(len(waits)), waits[0].seconds, tuple(unless.values()), runs)


def _when(wait: Wait) -> float:
    return float("inf") if wait.seconds is None else wait.seconds


def _more(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""
