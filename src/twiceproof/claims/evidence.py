"""What a late holder reports: kept and shown, never lost, never silently taken as the result."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from ..drive import Operation
from ..records import Address, Insert, Record
from ..stores.base import Store
from .claim import NO_RESULT, Fault, Spill, body_of
from .states import EXPIRE

__all__ = ["Evidence", "evidence_of", "evidence_write", "read_evidence"]

KIND = "evidence"
KEEP = 365 * 86_400.0
PAGE = 1_000


class Evidence(Struct, frozen=True, omit_defaults=True):
    """One holder's last word about work that was no longer its own to report."""

    owner: str
    fence: int
    result: Raw = NO_RESULT
    spill: Spill | None = None
    fault: Fault | None = None
    step: str = ""  # which step of a run; "": the whole work
    seen_at: float = 0.0


def evidence_write(space: str, evidence: Evidence) -> Insert:
    """Addressed by the fence, so that a report made twice is one piece of evidence."""
    at = Address(space, KIND, f"{evidence.fence}:{evidence.step}" if evidence.step else str(evidence.fence))
    return Insert(at, body_of(evidence), queue=EXPIRE, due_in=KEEP)


def evidence_of(store: Store, space: str) -> Operation[list[Evidence]]:
    """All of it, in the order in which it came in. By its address, fence 10 would come before fence 9."""
    pieces: list[Evidence] = []
    after: str | None = None
    while True:
        page = yield from store.scan(KIND, space=space, after=after, limit=PAGE)
        pieces += [read_evidence(record) for record in page.records]
        after = page.after
        if after is None:
            return sorted(pieces, key=lambda piece: (piece.seen_at, piece.fence))


def read_evidence(record: Record) -> Evidence:
    evidence = msgspec.json.decode(record.body, type=Evidence)
    return msgspec.structs.replace(evidence, seen_at=record.created_at)
