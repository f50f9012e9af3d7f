"""Claims as the command line shows them: the JSON shapes, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct, structs

from ..claims.claim import CLAIM, DONE, FAILED, HELD, REVIEW, RUN, address_of, claim_of, shown_run, validate_name
from ..claims.queries import Evidence, evidence_of, list_records
from ..claims.results import unpack
from ..claims.retention import run_or_claim
from ..claims.states import TRIM, is_expired, is_lapsed, kept_until
from ..keys import validate_key
from ..operations import Operation
from ..records import Address, Found, Record
from ..stores.base import Store
from .output import NotFound
from .target import LedgerTarget, command

__all__ = [
    "EVERY_STATE",
    "OPEN_STATES",
    "ClaimEvidenceShape",
    "ClaimPage",
    "ClaimShape",
    "LongClaimShape",
    "Look",
    "ReviewedClaimShape",
    "evidence_shape",
    "list_claims",
    "long_shape",
    "look_at",
    "named_address",
    "require_claim",
    "reviewed_shape",
    "short_shape",
]


class ClaimShape(Struct, frozen=True, kw_only=True):
    """One claim in a list. Times are the store's, in seconds since 1970."""

    operation: str
    key: str
    tenant: str
    state: str
    lapsed: bool  # held, but its lease has expired
    attempt: int
    owner: str
    run: str
    link: str
    created_at: float
    updated_at: float
    age: float
    lease_until: float | None
    lease_left: float | None

    @property
    def word(self) -> str:
        return f"{self.state}, lapsed" if self.lapsed else self.state


class LongClaimShape(ClaimShape, frozen=True, kw_only=True):
    """One claim with all its fields."""

    fingerprint: str
    fence: int
    reason: str
    result_kept: bool  # distinguishes the result null from no result
    result: Raw | None
    spill: dict[str, Any] | None
    fault: dict[str, Any] | None
    settled: dict[str, Any] | None
    result_until: float | None  # when the result is deleted; null: together with the claim
    kept_until: float | None  # when the claim may be deleted; null: never, or not before it has ended


class ReviewedClaimShape(ClaimShape, frozen=True, kw_only=True):
    """One claim in review, with the reason."""

    reason: str


class ClaimEvidenceShape(Struct, frozen=True, kw_only=True):
    """What a holder reported after it had lost the claim."""

    owner: str
    fence: int
    seen_at: float
    result_kept: bool
    result: Raw | None
    spill: dict[str, Any] | None
    fault: dict[str, Any] | None


def short_shape(record: Record, now: float) -> ClaimShape:
    return ClaimShape(**_short(record, now))


def reviewed_shape(record: Record, now: float) -> ReviewedClaimShape:
    claim = claim_of(record)
    fault = f"{claim.fault.type}: {claim.fault.message}" if claim.fault else ""
    return ReviewedClaimShape(**_short(record, now), reason=claim.reason or fault)


def long_shape(record: Record, now: float, result: Raw | str) -> LongClaimShape:
    claim = claim_of(record)
    return LongClaimShape(
        **_short(record, now),
        fingerprint=claim.fingerprint,
        fence=record.fence,
        reason=claim.reason,
        result_kept=bool(result),
        result=_raw(result),
        spill=_fields(claim.spill),
        fault=_fields(claim.fault),
        settled=_fields(claim.settled),
        result_until=record.due_at if record.queue == TRIM else None,
        kept_until=kept_until(record, claim),
    )


def evidence_shape(evidence: Evidence, result: Raw | str) -> ClaimEvidenceShape:
    return ClaimEvidenceShape(
        owner=evidence.owner,
        fence=evidence.fence,
        seen_at=evidence.seen_at,
        result_kept=bool(result),
        result=_raw(result),
        spill=_fields(evidence.spill),
        fault=_fields(evidence.fault),
    )


def _short(record: Record, now: float) -> dict[str, Any]:
    claim = claim_of(record)
    held = record.state == HELD
    return {
        "operation": claim.operation,
        "key": claim.key,
        "tenant": claim.tenant,
        "state": record.state,
        "lapsed": held and is_lapsed(record, now),
        "attempt": claim.attempt,
        "owner": claim.owner,
        "run": shown_run(claim.run) if record.at.kind == RUN else claim.run,
        "link": claim.link,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "age": max(0.0, now - record.created_at),
        "lease_until": record.lease_until,
        "lease_left": max(0.0, (record.lease_until or now) - now) if held else None,
    }


def _raw(result: Raw | str) -> Raw | None:
    return Raw(result) if result else None


def _fields(struct: Struct | None) -> dict[str, Any] | None:
    """Return every field, also those that are omitted in the store: a shape always has the same keys."""
    return None if struct is None else structs.asdict(struct)


OPEN_STATES = (REVIEW, HELD, FAILED)  # those that need a person come first
EVERY_STATE = (*OPEN_STATES, DONE)


class ClaimPage(Struct, frozen=True):
    """One page of a list. `after` is the cursor of the next page; None on the last one."""

    claims: Sequence[ClaimShape]
    after: str | None


def list_claims(
    store: Store, states: Sequence[str], prefix: str, *, limit: int, after: str | None = None
) -> Operation[ClaimPage]:
    """Return claims whose space begins with `prefix`, ordered by state."""
    listed = yield from list_records(
        store,
        [(CLAIM, state) for state in states],
        lambda record: record.at.space.startswith(prefix),
        limit=limit,
        after=after,
    )
    return ClaimPage([short_shape(record, listed.now) for record in listed.records], listed.after)


class Look(Struct, frozen=True):
    claim: LongClaimShape | None  # None: released or deleted since
    evidence: Sequence[ClaimEvidenceShape]
    is_run: bool = False


def named_address(tenant: str, operation: str, key: str) -> Address:
    return address_of(validate_name("tenant", tenant), validate_name("operation", operation), validate_key(key))


def look_at(target: LedgerTarget, store: Store, at: Address) -> Operation[Look]:
    """Read a claim and the evidence about it. Evidence is shown even if the claim was released: errors refer to it."""
    found = yield from run_or_claim(store, at.space)
    evidence = []
    for piece in (yield from evidence_of(store, at.space)):
        evidence.append(evidence_shape(piece, (yield from unpack(store, at, piece.result, piece.spill))))
    if evidence and (found.record is None or is_expired(found.record, found.now)):
        return Look(None, evidence)
    record = require_claim(target, found)
    result = yield from _result_of(store, record, found.now)
    return Look(long_shape(record, found.now, result), evidence, is_run=record.at.kind == RUN)


def require_claim(target: LedgerTarget, found: Found) -> Record:
    if found.record is None or is_expired(found.record, found.now):
        raise NotFound(
            "There is no such claim (the operation comes first, then the key); "
            f"list all claims: {command(target, 'claims', 'list', '--state', 'all')}"
        )
    return found.record


def _result_of(store: Store, record: Record, now: float) -> Operation[Raw | str]:
    """Return the result; empty if there is none, or if it has expired and is not swept yet."""
    if record.queue == TRIM and record.due_at is not None and record.due_at <= now:
        return ""
    claim = claim_of(record)
    return (yield from unpack(store, record.at, claim.result, claim.spill))
