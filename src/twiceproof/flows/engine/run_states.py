"""Pure: what a run adds to its claim, and what a take does about it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from ...claims.claim import (
    FAILED,
    HELD,
    NO_RESULT,
    QUEUED,
    REVIEW,
    WAITING,
    Busy,
    Claim,
    Parked,
    Spill,
    body_of,
    claim_of,
)
from ...claims.states import (
    AnswerOnly,
    BeginClaim,
    ClaimRequest,
    Move,
    ParkClaim,
    claim_for,
    decide,
    is_expired,
    is_lapsed,
)
from ...records import Insert, Record, Replace

__all__ = [
    "BROKE",
    "FRESH",
    "INNER_REVIEW",
    "MOST_CRASHES",
    "NOT_AWAITED",
    "NOT_UNDONE",
    "WAITS_FOR_RUN",
    "BeginRun",
    "Leftover",
    "RunRequest",
    "RunState",
    "decide_run",
    "encoded",
    "enqueue",
    "is_broken",
    "queue_of",
    "with_work",
    "work_of",
]


# Parts of the reason of a run that waits or is in review, by which it is recognised. Stored: do not change them.
WAITS_FOR_RUN = "waits for the run of "  # begins it: the run waits for another
INNER_REVIEW = "what it called waits for a person"  # in it: a run that it called is in review
NOT_AWAITED = "was called and never awaited"  # in it: the flow forgot an await
BROKE = "its own code broke off with "  # begins it: a programming mistake in the flow's function
NOT_UNDONE = "it could not be undone"  # begins it: its undo could not even begin


class RunState(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a run adds to its claim, stored in the claim's record as JSON. Stored names stay as they were."""

    version: str = "1"
    input: Raw = NO_RESULT
    spill: Spill | None = None  # where the input is, if it is large
    correlation: str = ""
    crashes: int = 0  # holders that crashed or were interrupted
    since: float = 0.0  # a time in the ledger before its holder took it
    crash_unresolved: bool = False  # a holder crashed, and no call has ended since
    undoing: str = ""  # why it is being undone: "settled", "cancelled"
    by: str = ""  # who requested that
    parent: str = ""
    start_id: str = ""  # tells this start of its key from earlier ones
    follows: str = ""  # the run that must have ended before this one begins
    gap_until: float = 0.0  # until when it waits for the versions before its own
    forked_from: str = ""  # the run that this one was forked from, under another key
    awaits: tuple[str, ...] = ()  # the runs that it waits for
    waiters: tuple[str, ...] = ()  # the runs that wait for this one to end
    ordered: tuple[str, str, str] | None = None  # in an ordered flow: its object, its version's kind and text
    unawaited: tuple[str, ...] = ()  # calls that were made and never awaited: made later, they are no change
    starter: str = ""  # who started it, if known: that person may not approve it
    event: tuple[str, str, str] | None = None  # what started it: a hook or consumer, the event's id, its message's key


_decode = msgspec.json.Decoder(RunState).decode
_encode = msgspec.json.Encoder().encode


def work_of(claim: Claim) -> RunState:
    return _decode(claim.work) if claim.work else RunState()


def with_work(claim: Claim, **changes: Any) -> Claim:
    return structs.replace(claim, work=Raw(_encode(structs.replace(work_of(claim), **changes))))


def encoded(work: RunState) -> Raw:
    return Raw(_encode(work))


def queue_of(tenant: str, operation: str, version: str) -> str:
    """Return the queue in which workers that have this version of this flow look for runs."""
    return f"{tenant}/{operation}@{version}"


FRESH = ""  # the state before of a run that did not exist
MOST_CRASHES = 50


class RunRequest(Struct, frozen=True):
    """A request to take a run: which one, and which versions of its flow this process has."""

    request: ClaimRequest
    work: Raw
    versions: tuple[str, ...]
    picked: str = ""  # the version of its record that the store handed out as due


class BeginRun(BeginClaim, frozen=True, gc=False):
    """Make this write; if it succeeds, the run is ours. `before` is the state it was in."""

    claim: Claim
    before: str = FRESH


class Leftover(AnswerOnly, frozen=True, gc=False):
    """An expired run of the same key: its records must be deleted first, or the new run would take them for its own."""

    record: Record


def decide_run(run: RunRequest, record: Record | None, now: float) -> Move:
    if record is None or is_expired(record, now):
        return _decide_gone(run, record)
    claim = claim_of(record)
    if _asks_for_another(run.request, claim):
        return decide(run.request, record, now)  # reports the mismatch
    if record.state == HELD:
        return _decide_held(run, record, claim, now)
    if record.state in (QUEUED, WAITING):
        due = run.picked == record.version or (record.due_at is not None and record.due_at <= now)
        return _resume(run, record, claim, now) if due else AnswerOnly(_parked(record, claim))
    if run.request.retry and (record.state == FAILED or is_broken(record, claim)):
        return _resume(run, record, claim, now)
    return decide(run.request, record, now)


def is_broken(record: Record, claim: Claim) -> bool:
    """Whether a mistake in its own code stopped it: no outcome is unknown, so it can go on after a fix."""
    return record.state == REVIEW and claim.reason.startswith(BROKE)


def _decide_gone(run: RunRequest, record: Record | None) -> Move:
    if run.picked:  # handed out as due and deleted meanwhile: it must not begin anew
        return AnswerOnly(Parked("", "it is gone", run.request.run))
    return _begin(run) if record is None else Leftover(Parked("", "it may be forgotten", run.request.run), record)


def _asks_for_another(request: ClaimRequest, claim: Claim) -> bool:
    return bool(request.fingerprint and claim.fingerprint and request.fingerprint != claim.fingerprint)


def _decide_held(run: RunRequest, record: Record, claim: Claim, now: float) -> Move:
    """Take over only a lapsed lease. The ledger and the declarations of its steps say what its holder was doing."""
    if not is_lapsed(record, now):
        return AnswerOnly(Busy(claim.owner, (record.lease_until or now) - now, claim.run))
    return _resume(run, record, claim, now)


def _parked(record: Record, claim: Claim) -> Parked:
    return Parked(record.state, claim.reason, claim.run, record.due_at)


def _begin(run: RunRequest) -> BeginRun:
    request = run.request
    claim = structs.replace(claim_for(request, 1), work=run.work)
    queue = queue_of(request.tenant, request.operation, run.versions[0])
    insert = Insert(request.at, body_of(claim), HELD, draw=True, lease=request.lease, queue=queue, due_in=request.lease)
    return BeginRun(insert, 1, claim)


def _resume(run: RunRequest, record: Record, claim: Claim, now: float) -> Move:
    """Go on with a run that is not held. Its input, version and history stay as they are."""
    work, request = work_of(claim), run.request
    if work.version not in run.versions:
        why = f"belongs to version {work.version} of its flow, which this process does not have"
        return AnswerOnly(Parked(record.state, why, claim.run, record.due_at))
    if record.state == HELD and work.crashes >= MOST_CRASHES:
        why = f"the processes that took it crashed or were stopped, {work.crashes + 1} times now"
        return _park(record, with_work(claim, crash_unresolved=True), why)
    claim = structs.replace(
        claim, owner=request.owner, attempt=claim.attempt + 1, reason="", fault=None, result=NO_RESULT
    )
    claim = with_work(claim, **_news(record, work, now))
    queue = queue_of(claim.tenant, claim.operation, work.version)
    write = Replace(
        record.at,
        body_of(claim),
        HELD,
        version=record.version,
        draw=True,
        lease=request.lease,
        queue=queue,
        due_in=request.lease,
    )
    return BeginRun(write, claim.attempt, claim, record.state)


def _news(record: Record, work: RunState, now: float) -> dict[str, Any]:
    """Return what a take changes in a run's state. What a crash may have begun, began after `since`."""
    if record.state == HELD:
        return {"crashes": work.crashes + 1, "since": work.since or record.created_at}
    since = work.since or record.created_at if work.crash_unresolved else now
    if record.state == FAILED:  # a person asked for a retry: what stopped it no longer counts
        return {"since": since, "undoing": "", "by": ""}
    return {"since": since}


def _park(record: Record, claim: Claim, reason: str) -> ParkClaim:
    """A run that crashes every worker that takes it must not be taken for ever."""
    body = body_of(structs.replace(claim, reason=reason))
    return ParkClaim(Replace(record.at, body, REVIEW, version=record.version, draw=True), reason)


def enqueue(request: ClaimRequest, work: Raw, delay: float) -> Insert:
    """Make the write that leaves a new run to a worker."""
    claim = structs.replace(claim_for(request, 0), work=work)
    queue = queue_of(request.tenant, request.operation, work_of(claim).version)
    return Insert(request.at, body_of(claim), QUEUED, draw=True, queue=queue, due_in=delay)
