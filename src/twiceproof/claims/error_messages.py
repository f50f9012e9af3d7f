"""The errors a guarded call can end with: what was found, as one line with the next move."""

from __future__ import annotations

from typing import Any

from ..errors import (
    ClaimError,
    ClaimLost,
    Duplicate,
    InProgress,
    NeedsReview,
    PayloadMismatch,
    PriorFailure,
    ResultNotKept,
    StoreUnsafe,
    Waiting,
)
from ..records import Record
from ..safe_text import suggested_command
from .claim import CLAIM, HELD, Busy, Done, Failed, Fault, InReview, LostHold, Mismatch, Parked, claim_of, shown_run
from .held_claim import HeldClaim
from .states import ClaimRequest

__all__ = [
    "BEFORE",
    "DURING",
    "claim_lost",
    "duplicate",
    "in_doubt",
    "inherited",
    "named",
    "no_longer_fits",
    "one_write_store",
    "refusal",
    "refuse_other_fingerprint",
    "refuse_other_payload",
    "result_not_kept",
    "unknown_after",
    "unsafe_store",
    "waiting",
]


BEFORE, DURING = "before it began", "while it ran"


def unsafe_store(what: str, *, declare: str = "") -> StoreUnsafe:
    """Return the error for work that needs a store which keeps every acknowledged write.

    `what` says which work, `declare` the declaration that would allow this store, if there is one.
    """
    return StoreUnsafe(
        f"{what}, but this store can lose acknowledged writes on failover; use PostgreSQL or SQLite, "
        f"{declare and f'declare {declare}, '}or accept it with App(best_effort=True)."
    )


def one_write_store(what: str) -> StoreUnsafe:
    """Return the error for work that writes several records together, on a store with a `batch_limit` of 1."""
    return StoreUnsafe(
        f"{what} writes several records together, and this store lands one at a time: it carries @app.once, "
        "app.claim, the claim service, webhooks to guarded functions and the Idempotency-Key middleware. For "
        "flows, waits, schedules and the outbox take sqlite:/// or postgresql://."
    )


def named(request: ClaimRequest) -> str:
    return f"{request.operation} for {request.key!r}"


def show(request: ClaimRequest) -> str:
    return _about(request, "show")


def _about(request: ClaimRequest, *words: str) -> str:
    tenant = () if request.tenant == "default" else ("--tenant", request.tenant)
    return suggested_command(*request.where, *tenant, "claims", *words, about=(request.operation, request.key))


def _shown(request: ClaimRequest, run: str) -> str:
    """Return the id to show. A claim that is not a run has no index record, and keeps its long id."""
    return run if request.at.kind == CLAIM else shown_run(run)


def _again(request: ClaimRequest, fault: Fault) -> str:
    if fault.type == "Abandoned":
        return f"if it was not done and is to run after all: {_about(request, 'settle', '--did-not-happen')}"
    if request.inline:
        return f"once the cause is gone, have it run again with: {_about(request, 'settle', '--did-not-happen')}"
    return "call .retry(…) with the same arguments to run it again."


def refusal(request: ClaimRequest, outcome: Busy | Failed | InReview | Mismatch | Parked) -> ClaimError:
    error = _refusal(request, outcome)
    error.reference = outcome.run
    return error


def _refusal(request: ClaimRequest, outcome: Busy | Failed | InReview | Mismatch | Parked) -> ClaimError:
    data: dict[str, Any] = {"operation": request.operation, "key": request.key, "run": _shown(request, outcome.run)}
    if isinstance(outcome, Busy):
        return InProgress(
            f"{named(request)} is being worked on by {outcome.owner}; try again later "
            f"(its lease runs for another {outcome.retry_after:.1f} s).",
            owner=outcome.owner,
            retry_after=outcome.retry_after,
            **data,
        )
    if isinstance(outcome, Failed):
        return PriorFailure(
            f"{named(request)} failed before with {outcome.fault.type}: {outcome.fault.message}; "
            f"{_again(request, outcome.fault)}",
            fault=outcome.fault,
            error=f"{outcome.fault.type}: {outcome.fault.message}",
            **data,
        )
    if isinstance(outcome, InReview):
        return NeedsReview(
            f"{named(request)} waits for a person: {outcome.reason}. Look at it with: {show(request)}",
            reason=outcome.reason,
            since=outcome.since,
            **data,
        )
    if isinstance(outcome, Parked):
        return waiting(request, outcome)
    return PayloadMismatch(
        f"{named(request)} is known with another payload; use another key, send what was sent the first time, "
        f"or leave {'what varies out of payload=' if request.inline else 'out what varies with ignore='}.",
        found=outcome.found,
        asked=outcome.asked,
        state=outcome.state,
        **data,
    )


def unknown_after(fault: Fault) -> str:
    return f"{fault.type} while it ran: whether its work was done is unknown"


def in_doubt(request: ClaimRequest, fault: Fault) -> NeedsReview:
    """Return the error for work that ended with an error that does not tell whether it was done."""
    return NeedsReview(
        f"{named(request)} waits for a person: {unknown_after(fault)} ({fault.type}: {fault.message}). "
        f"Look at it with: {show(request)}",
        operation=request.operation,
        key=request.key,
        run=_shown(request, request.run),
        reason=unknown_after(fault),
        fault=fault,
    )


def waiting(request: ClaimRequest, parked: Parked) -> Waiting:
    show = suggested_command(*request.where, "runs", "show", _shown(request, parked.run))
    error = Waiting(
        f"{named(request)} is under way and {parked.why or 'waits for a worker'}; a worker goes on with it "
        f"(twiceproof work), or call again later. Look at it with: {show}",
        operation=request.operation,
        key=request.key,
        run=_shown(request, parked.run),
        state=parked.state,
        until=parked.until,
        why=parked.why,
    )
    error.reference = parked.run
    return error


def refuse_other_payload(outer: ClaimRequest, request: ClaimRequest) -> None:
    """A call for the same key from inside the work is part of it unless it asks for something else."""
    if request.fingerprint and outer.fingerprint != request.fingerprint:
        raise refusal(request, Mismatch(outer.fingerprint, request.fingerprint, HELD, outer.run))


def refuse_other_fingerprint(request: ClaimRequest, found: Record) -> None:
    """A second start of the same run is welcome only if it asks for the same."""
    claim = claim_of(found)
    if request.fingerprint and claim.fingerprint and request.fingerprint != claim.fingerprint:
        raise refusal(request, Mismatch(claim.fingerprint, request.fingerprint, found.state, claim.run))


def duplicate(request: ClaimRequest, done: Done, value: Any, *, own: bool = False) -> Duplicate:
    """`own`: to a run that was at it when it crashed, this may be the result of its own call."""
    return Duplicate(
        f"{named(request)} was done before; what it returned is in this error's .result.",
        operation=request.operation,
        key=request.key,
        result=value,
        run=_shown(request, done.run),
        own=own,
    )


def claim_lost(hold: HeldClaim, lost: LostHold, when: str) -> ClaimLost:
    known = "Nothing was done by this call" if when == BEFORE else "What it found out is kept as evidence"
    return ClaimLost(
        f"{named(hold.request)} lost its claim {when}: it is now {lost.state or 'gone'}. {known}: {show(hold.request)}",
        operation=hold.request.operation,
        key=hold.request.key,
        state=lost.state,
        owner=lost.owner,
    )


def inherited(hold: HeldClaim) -> ClaimLost:
    return ClaimLost(
        f"{named(hold.request)} is held by the process that this one was forked from, which goes on with it; leave a "
        "forked child with os._exit(…), or give it a key of its own.",
        operation=hold.request.operation,
        key=hold.request.key,
        state="held",
        owner=hold.held.owner,
    )


def no_longer_fits(request: ClaimRequest, done: Done, why: str) -> NeedsReview:
    """Done, and its code has changed since. Returned as plain JSON, it would break its caller."""
    return NeedsReview(
        f"{named(request)} was done, but {why}. Give what is new in that type a default; see what is on record: "
        f"{show(request)}",
        operation=request.operation,
        key=request.key,
        run=_shown(request, done.run),
        reason=why,
    )


def result_not_kept(request: ClaimRequest, done: Done) -> ResultNotKept:
    why = done.spill.reason if done.spill and done.spill.reason else "its time is over"
    return ResultNotKept(
        f"{named(request)} was done, but its result is not kept ({why}); look at the claim with: {show(request)}",
        operation=request.operation,
        key=request.key,
        run=_shown(request, done.run),
        digest=done.spill.digest if done.spill else "",
        size=done.spill.size if done.spill else 0,
    )
