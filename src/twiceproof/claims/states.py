"""Pure decisions about claims: from a record and the store's time to what to write and what to answer.

No I/O, no clock, no random numbers. docs/states.md has the diagram of these transitions.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, structs

from ..records import Address, Insert, Record, Replace, Write
from .claim import (
    CLAIM,
    DONE,
    FAILED,
    HELD,
    NO_RESULT,
    QUEUED,
    REVIEW,
    RUN,
    WAITING,
    Busy,
    Claim,
    Done,
    Failed,
    Fault,
    InReview,
    Mismatch,
    Parked,
    TakeOutcome,
    body_of,
    claim_of,
    index_address,
    is_abandoned,
    short_id,
)

__all__ = [
    "EXPIRE",
    "LOOK_AGAIN",
    "TRIM",
    "AnswerOnly",
    "BeginClaim",
    "ClaimRequest",
    "Lifetime",
    "Move",
    "ParkClaim",
    "Pointer",
    "claim_for",
    "decide",
    "decide_of_other_kind",
    "finish_times",
    "first_pointer",
    "kept_until",
    "outcome_of",
    "pointer_of",
    "pointer_write",
    "run_pointer",
]


EXPIRE = "claims.expire"  # the queue of claims whose key may be forgotten when due
TRIM = "claims.trim"  # the queue of claims whose result may be dropped when due, leaving a tombstone
LOOK_AGAIN = 30 * 86_400.0  # seconds after which a pointer, or what lies beside a claim, is checked again
LONG_AFTER = 365 * 86_400.0  # the same for index records, which are removed with their run: only leftovers become due


class ClaimRequest(Struct, frozen=True, gc=False, kw_only=True):
    """What a caller wants to claim, and how. The tenant is part of the request."""

    at: Address
    operation: str
    key: str
    owner: str
    lease: float
    tenant: str = "default"
    fingerprint: str = ""
    run: str = ""
    link: str = ""
    repeat: str = "never"  # what a lapsed lease means: "never" parks it, "safe" runs it again
    retry: bool = False  # run again what failed for good
    where: tuple[str, ...] = ()  # command-line options that lead to this store: --store, sqlite:///shop.db
    reentrant: bool = False  # the owner's name is stable: the same owner may find itself
    inline: bool = False  # asked by app.claim, which has no function to call again


class AnswerOnly(Struct, frozen=True, gc=False):
    """Nothing to write."""

    outcome: TakeOutcome


class BeginClaim(Struct, frozen=True, gc=False):
    """Write this; if it succeeds, the claim is held here."""

    write: Insert | Replace
    attempt: int


class ParkClaim(Struct, frozen=True, gc=False):
    """Write this; if it succeeds, the claim waits for review."""

    write: Replace
    reason: str


Move = AnswerOnly | BeginClaim | ParkClaim


class Lifetime(Struct, frozen=True, gc=False):
    """How long a finished claim is kept, in seconds. None: without limit."""

    keep: float | None = 30 * 86_400.0
    keep_result: float | None = None  # None: as long as the key
    keep_failed: float | None = 30 * 86_400.0


def decide(request: ClaimRequest, record: Record | None, now: float) -> Move:
    """Return what a take should do about the record it found."""
    if record is None:
        return BeginClaim(_insert(request), 1)
    if is_expired(record, now):
        return _take_over(request, record, 1)
    claim = claim_of(record)
    if request.fingerprint and claim.fingerprint and request.fingerprint != claim.fingerprint:
        return AnswerOnly(Mismatch(claim.fingerprint, request.fingerprint, record.state, claim.run))
    if record.state == HELD:
        return _decide_held(request, record, claim, now)
    retried = request.retry and not is_abandoned(claim)  # whether it was done is unknown
    if record.state == FAILED and (retried or (claim.fault and claim.fault.retryable)):
        return _take_over(request, record, claim.attempt + 1)
    return AnswerOnly(_settled(record, claim, now))


def _decide_held(request: ClaimRequest, record: Record, claim: Claim, now: float) -> Move:
    if request.reentrant and claim.owner == request.owner:
        return _take_over(request, record, claim.attempt)
    if not is_lapsed(record, now):
        return AnswerOnly(Busy(claim.owner, _time_left(record, now), claim.run))
    if request.repeat == "safe":
        return _take_over(request, record, claim.attempt + 1)
    reason = f"{claim.owner} stopped without a word; whether its work was done is unknown"
    return ParkClaim(_park(record, claim, reason), reason)


def decide_of_other_kind(request: ClaimRequest, record: Record, now: float) -> AnswerOnly | ParkClaim:
    """Decide about a claim that a run finds under its operation and key, or a run that a claim finds."""
    claim = claim_of(record)
    if request.fingerprint and claim.fingerprint and request.fingerprint != claim.fingerprint:
        return AnswerOnly(Mismatch(claim.fingerprint, request.fingerprint, record.state, claim.run))
    if record.at.kind == CLAIM and record.state == HELD and is_lapsed(record, now):
        reason = f"{claim.owner} stopped without a word; whether its work was done is unknown"
        return ParkClaim(_park(record, claim, reason), reason)
    return AnswerOnly(outcome_of(record, now))


def outcome_of(record: Record, now: float) -> TakeOutcome:
    """Return what a claim is now, without taking it."""
    claim = claim_of(record)
    if record.state == HELD:
        return Busy(claim.owner, _time_left(record, now), claim.run)
    return _settled(record, claim, now)


def _settled(record: Record, claim: Claim, now: float) -> TakeOutcome:
    if record.state == DONE:
        kept = not _is_due(record, TRIM, now)
        return Done(
            record.at,
            claim.result if kept else NO_RESULT,
            claim.spill if kept else None,
            claim.run,
            claim.finished_at or record.updated_at,
            kept_until(record, claim),
            claim.mistyped or claim.settled is not None,
        )
    if record.state == FAILED:
        fault = claim.fault or Fault("unknown")
        return Failed(fault, fault.retryable, claim.run)
    if record.state in (QUEUED, WAITING):
        return Parked(record.state, claim.reason, claim.run, record.due_at)
    return InReview(claim.reason, claim.run, record.updated_at)


def kept_until(record: Record, claim: Claim) -> float | None:
    """Return when the key may be removed; None: never, or not before it has ended. A tombstone outlives its result.

    Counted from the claim's end, where that is known: a sweep that looks at a record moves its due time.
    """
    if record.queue != TRIM:
        return record.due_at if record.queue == EXPIRE else None
    if claim.keep is not None:
        return None if claim.keep < 0 else (claim.finished_at or record.updated_at) + claim.keep
    for_ever = record.due_at is None or claim.tombstone is None or claim.tombstone < 0
    return None if for_ever else (record.due_at or 0.0) + (claim.tombstone or 0.0)


def is_expired(record: Record, now: float) -> bool:
    if record.due_at is None or record.due_at > now:
        return False
    if record.queue == TRIM:  # not swept yet
        until = kept_until(record, claim_of(record))
        return until is not None and until <= now
    return record.queue == EXPIRE


def is_lapsed(record: Record, now: float) -> bool:
    return record.lease_until is None or record.lease_until <= now


def _is_due(record: Record, queue: str, now: float) -> bool:
    return record.queue == queue and record.due_at is not None and record.due_at <= now


def _time_left(record: Record, now: float) -> float:
    return max(0.0, (record.lease_until or now) - now)


def _insert(request: ClaimRequest) -> Insert:
    return Insert(request.at, body_of(claim_for(request, 1)), HELD, draw=True, lease=request.lease)


def _take_over(request: ClaimRequest, record: Record, attempt: int) -> BeginClaim:
    """Take over by version, not by fence: if the record changed since it was read, a live claim would be overrun."""
    body = body_of(claim_for(request, attempt))
    write = Replace(request.at, body, HELD, version=record.version, draw=True, lease=request.lease)
    return BeginClaim(write, attempt)


def claim_for(request: ClaimRequest, attempt: int) -> Claim:
    """Return the claim that a request writes."""
    return Claim(
        request.operation,
        request.key,
        request.owner,
        request.tenant,
        request.fingerprint,
        attempt,
        request.run,
        request.link,
    )


def _park(record: Record, claim: Claim, reason: str) -> Replace:
    body = body_of(structs.replace(claim, reason=reason))
    return Replace(record.at, body, REVIEW, version=record.version, draw=True)


def finish_times(state: str, life: Lifetime) -> tuple[str, float | None, float | None]:
    """Return a finished claim's queue, its due time in seconds, and `keep` where the result is removed first."""
    if state == FAILED:
        return ("", None, None) if life.keep_failed is None else (EXPIRE, life.keep_failed, None)
    trimmed = life.keep_result is not None and (life.keep is None or life.keep_result < life.keep)
    if trimmed and life.keep_result is not None:
        return TRIM, life.keep_result, -1.0 if life.keep is None else life.keep
    return ("", None, None) if life.keep is None else (EXPIRE, life.keep, None)


# -- pointers to runs ----------------------------------------------------------------------------


class Pointer(Struct, frozen=True, omit_defaults=True):
    """Leads to a unit of work, by its space, and to a step of it."""

    space: str
    step: str = ""
    key: str = ""
    flow: str = ""


def pointer_of(record: Record) -> Pointer:
    return msgspec.json.decode(record.body, type=Pointer)


def pointer_write(at: Address, pointer: Pointer, due_in: float = LOOK_AGAIN) -> Insert:
    """Return the write of a pointer. It is due from time to time, to check whether its run still exists."""
    return Insert(at, body_of(pointer), queue=EXPIRE, due_in=due_in)


def run_pointer(space: str) -> Insert:
    """Return the write of the index record by which a run is found by its short id. It is removed with its run."""
    return pointer_write(index_address(short_id(space)), Pointer(space), LONG_AFTER)


def first_pointer(write: Write) -> Insert | None:
    """Return the index record that goes into the same commit as the first write of a run; None for other writes."""
    return run_pointer(write.at.space) if type(write) is Insert and write.at.kind == RUN else None
