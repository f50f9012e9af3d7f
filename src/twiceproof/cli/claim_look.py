"""One claim with everything around it: its result, wherever that is kept, and what late holders reported."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct

from ..claims.claim import RUN, address_of, claim_of, validate_name
from ..claims.evidence import evidence_of
from ..claims.pieces import run_or_claim
from ..claims.results import unpack
from ..claims.states import TRIM, is_expired
from ..drive import Operation
from ..keys import validate_key
from ..records import Address, Found, Record
from ..stores.base import Store
from .claim_shape import EvidenceShape, LongClaimShape, evidence_shape, long_shape
from .failures import NotFound
from .shell import command
from .target import Target

__all__ = ["Look", "look_at", "named_address", "require_claim"]


class Look(Struct, frozen=True):
    claim: LongClaimShape | None  # None: released or forgotten since
    evidence: Sequence[EvidenceShape]
    is_run: bool = False


def named_address(tenant: str, operation: str, key: str) -> Address:
    return address_of(validate_name("tenant", tenant), validate_name("operation", operation), validate_key(key))


def look_at(target: Target, store: Store, at: Address) -> Operation[Look]:
    """What late holders reported is shown without a claim, too: their errors lead here, also after a release."""
    found = yield from run_or_claim(store, at.space)
    evidence = []
    for piece in (yield from evidence_of(store, at.space)):
        evidence.append(evidence_shape(piece, (yield from unpack(store, at, piece.result, piece.spill))))
    if evidence and (found.record is None or is_expired(found.record, found.now)):
        return Look(None, evidence)
    record = require_claim(target, found)
    result = yield from _result_of(store, record, found.now)
    return Look(long_shape(record, found.now, result), evidence, is_run=record.at.kind == RUN)


def require_claim(target: Target, found: Found) -> Record:
    if found.record is None or is_expired(found.record, found.now):
        raise NotFound(
            "There is no such claim (the operation comes first, then the key); "
            f"list what is there with: {command(target, 'claims', 'list', '--state', 'all')}"
        )
    return found.record


def _result_of(store: Store, record: Record, now: float) -> Operation[Raw | str]:
    """Empty if it is nowhere, or if its time is over and it was only not swept yet."""
    if record.queue == TRIM and record.due_at is not None and record.due_at <= now:
        return ""
    claim = claim_of(record)
    return (yield from unpack(store, record.at, claim.result, claim.spill))
