"""A claim as it is shown over HTTP. Looking changes nothing."""

from __future__ import annotations

from msgspec import Raw, Struct

from ...claims.claim import HELD, claim_of
from ...claims.evidence import Evidence, evidence_of
from ...claims.pieces import run_or_claim
from ...claims.results import unpack
from ...claims.states import is_expired, is_lapsed
from ...drive import Operation
from ...records import Address, Record
from ...stores.base import Store
from ..reply import Reply, json_reply, problem

__all__ = ["ClaimView", "Report", "look_at_claim"]


class Report(Struct, frozen=True):
    """What a holder said that had lost its claim."""

    owner: str
    seen_at: float
    result: Raw | None
    error: str


class ClaimView(Struct, frozen=True):
    """Times are the ledger's, in seconds since 1970."""

    operation: str
    key: str
    state: str
    lapsed: bool  # held, but by nobody any more: what became of it is not known
    attempt: int
    owner: str
    run: str
    link: str
    lease_until: float | None
    updated_at: float
    result: Raw | None
    result_kept: bool
    error: str
    reason: str
    evidence: list[Report]


def look_at_claim(store: Store, at: Address) -> Operation[Reply]:
    found = yield from run_or_claim(store, at.space)
    record = found.record
    if record is None or is_expired(record, found.now):
        return problem(
            404, "unclaimed", "Nobody has claimed this key, or its time is over.",
            next_move="Claim it with PUT.", more={"claimed": False, "state": "unclaimed"},
        )  # fmt: skip
    return json_reply(200, (yield from _view(store, record, found.now)))


def _view(store: Store, record: Record, now: float) -> Operation[ClaimView]:
    claim = claim_of(record)
    result = yield from unpack(store, record.at, claim.result, claim.spill)
    evidence = yield from evidence_of(store, record.at.space)
    return ClaimView(
        claim.operation, claim.key, record.state, record.state == HELD and is_lapsed(record, now), claim.attempt,
        claim.owner, claim.run, claim.link, record.lease_until, record.updated_at, Raw(result) if result else None,
        bool(result), claim.fault.message if claim.fault else "", claim.reason, [_report(piece) for piece in evidence],
    )  # fmt: skip


def _report(piece: Evidence) -> Report:
    error = piece.fault.message if piece.fault else ""
    return Report(piece.owner, piece.seen_at, Raw(piece.result) if piece.result else None, error)
