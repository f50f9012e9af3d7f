"""A claim as it is shown: the stable JSON shape, from which the human form is made too."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, structs

from ..claims.claim import HELD, claim_of
from ..claims.evidence import Evidence
from ..claims.states import TRIM, is_lapsed, kept_until
from ..records import Record

__all__ = [
    "ClaimShape",
    "EvidenceShape",
    "LongClaimShape",
    "ReviewedClaimShape",
    "evidence_shape",
    "long_shape",
    "reviewed_shape",
    "short_shape",
]


class ClaimShape(Struct, frozen=True, kw_only=True):
    """One claim in a list. Times are the store's, in seconds since 1970."""

    operation: str
    key: str
    tenant: str
    state: str
    lapsed: bool  # held, but by nobody any more: the lease ran out
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
    """One claim with everything."""

    fingerprint: str
    fence: int
    reason: str
    result_kept: bool  # tells the result null from no result
    result: Raw | None
    spill: dict[str, Any] | None
    fault: dict[str, Any] | None
    settled: dict[str, Any] | None
    result_until: float | None  # when the result goes; null: with the claim
    kept_until: float | None  # when the claim may be forgotten; null: never, or not before it has ended


class ReviewedClaimShape(ClaimShape, frozen=True, kw_only=True):
    """One claim that waits for a person, and why."""

    reason: str


class EvidenceShape(Struct, frozen=True, kw_only=True):
    """What a late holder reported."""

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


def evidence_shape(evidence: Evidence, result: Raw | str) -> EvidenceShape:
    return EvidenceShape(
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
        "run": claim.run,
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
    """Every field, also those that are left out where they are stored: a shape has the same keys each time."""
    return None if struct is None else structs.asdict(struct)
