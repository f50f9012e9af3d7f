"""Claims as people and programs are shown them: lists, and one with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct, structs

from ..keys import validate_key
from ..operations import Operation
from ..records import Address, Record
from ..stores.base import Store
from .claim import CLAIM, DONE, FAILED, HELD, REVIEW, RUN, address_of, claim_of, parse_space, shown_run, validate_name
from .lists import ListPlace, list_records
from .queries import Evidence, evidence_of
from .results import unpack
from .retention import run_or_claim
from .states import TRIM, is_expired, is_lapsed, kept_until

__all__ = [
    "EVERY_STATE",
    "OPEN_STATES",
    "ClaimEvidenceShape",
    "ClaimLook",
    "ClaimPage",
    "ClaimShape",
    "LongClaimShape",
    "ReviewedClaimShape",
    "evidence_shape",
    "list_claims",
    "long_shape",
    "look_at_claim",
    "named_address",
    "reviewed_claims",
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
MOST_REVIEWED, MOST_LOOKED = 100, 1_000  # claims that are shown above runs, and looked through for it


class ClaimPage(Struct, frozen=True):
    """One page of a list, with cursors as those of a list of runs."""

    claims: Sequence[ClaimShape]
    after: str | None
    before: str | None = None
    newer: str | None = None


def list_claims(
    store: Store, states: Sequence[str], prefix: str, *, limit: int, after: str | None = None, key: str = ""
) -> Operation[ClaimPage]:
    """Return claims whose space begins with `prefix`, the newest first: of all states, or one state after the other.
    With `key`, only keys that begin so: where the prefix is a whole operation, they are found by their order.
    """
    every = set(states) == set(EVERY_STATE)
    places: list[ListPlace] = [(CLAIM, None)] if every else [(CLAIM, state) for state in states]
    is_whole = prefix.count("/") == 2
    wanted = prefix + key if is_whole else prefix

    def meant(record: Record) -> bool:
        space = record.at.space
        return space.startswith(wanted) and (is_whole or parse_space(space).key.startswith(key))

    listed = yield from list_records(
        store, places, meant, limit=limit, after=after, prefix=wanted, by_key=bool(key) and is_whole
    )
    claims = [short_shape(record, listed.now) for record in listed.records]
    return ClaimPage(claims, listed.after, listed.before, listed.newer)


def reviewed_claims(store: Store, tenant: str, operation: str = "") -> Operation[list[ReviewedClaimShape]]:
    """Return the latest claims in review that are no runs: of calls under @app.once, of the claim service, of events of
    webhooks. A bounded number."""
    prefix = f"{tenant}/{operation}/" if operation else f"{tenant}/"

    def meant(record: Record) -> bool:
        return record.at.space.startswith(prefix)

    listed = yield from list_records(store, [(CLAIM, REVIEW)], meant, limit=MOST_REVIEWED, most_read=MOST_LOOKED)
    return [reviewed_shape(record, listed.now) for record in listed.records]


class ClaimLook(Struct, frozen=True):
    claim: LongClaimShape | None  # None: released or deleted since
    evidence: Sequence[ClaimEvidenceShape]
    is_run: bool = False


def named_address(tenant: str, operation: str, key: str) -> Address:
    return address_of(validate_name("tenant", tenant), validate_name("operation", operation), validate_key(key))


def look_at_claim(store: Store, at: Address) -> Operation[ClaimLook | None]:
    """Read a claim or run and the evidence about it; None if there is neither.

    Evidence is shown even if the claim was released: errors refer to it.
    """
    found = yield from run_or_claim(store, at.space)
    evidence = []
    for piece in (yield from evidence_of(store, at.space)):
        evidence.append(evidence_shape(piece, (yield from unpack(store, at, piece.result, piece.spill))))
    record = found.record
    if record is None or is_expired(record, found.now):
        return ClaimLook(None, evidence) if evidence else None
    result = yield from _result_of(store, record, found.now)
    return ClaimLook(long_shape(record, found.now, result), evidence, is_run=record.at.kind == RUN)


def _result_of(store: Store, record: Record, now: float) -> Operation[Raw | str]:
    """Return the result; empty if there is none, or if it has expired and is not swept yet."""
    if record.queue == TRIM and record.due_at is not None and record.due_at <= now:
        return ""
    claim = claim_of(record)
    return (yield from unpack(store, record.at, claim.result, claim.spill))
