"""How a run leaves this process: done, failed, parked, or given back. What each writes, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from ..claims.claim import DONE, FAILED, QUEUED, REVIEW, WAITING, Claim, Fault, body_of
from ..claims.results import Packed
from ..claims.states import Lifetime, finish_times
from ..errors import Stale
from ..records import Address, Replace

__all__ = ["Asleep", "End", "Ended", "Fell", "Finished", "GivenBack", "Overtaken", "Reviewed", "as_done", "as_failed",
           "as_queued", "as_review", "as_waiting"]  # fmt: skip

End = Callable[[int], Replace]


class Finished(Struct, frozen=True):
    """The flow returned this."""

    value: Any


class Fell(Struct, frozen=True):
    """The flow failed for good. `undone` says what became of what it did."""

    error: BaseException
    undone: str = ""


class Asleep(Struct, frozen=True):
    """The run waits, and holds nothing."""

    why: str
    until: float | None


class Overtaken(Struct, frozen=True):
    """Done, and not applied: a newer version of its object was."""

    error: Stale


class Reviewed(Struct, frozen=True):
    """A person must decide. `error`: what was raised, where that is why."""

    reason: str
    error: Exception | None = None


class GivenBack(Struct, frozen=True):
    """The process was told to stop: whoever comes next goes on."""

    error: BaseException


Ended = Finished | Fell | Asleep | Overtaken | Reviewed | GivenBack


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
