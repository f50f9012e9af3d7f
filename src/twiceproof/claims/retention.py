"""Forgets what may be forgotten: in small batches, and never what is held."""

from __future__ import annotations

from msgspec import Struct, structs

from ..drive import Operation
from ..records import Record, Remove, Replace, Written
from ..stores.base import Store
from .claim import DONE, NO_RESULT, body_of, claim_of
from .states import EXPIRE, TRIM

__all__ = ["PASS", "Swept", "sweep"]

KINDS = ("claim", "evidence", "resource")
PASS = 200


class Swept(Struct, frozen=True):
    """What one sweep did: keys forgotten, results trimmed to a tombstone, pieces beside them removed."""

    forgotten: int = 0
    trimmed: int = 0
    pieces: int = 0

    @property
    def total(self) -> int:
        return self.forgotten + self.trimmed + self.pieces


def sweep(store: Store, *, limit: int = PASS) -> Operation[Swept]:
    """One pass. Each write is conditional on what was read: a key that is taken meanwhile stays."""
    counts = {"forgotten": 0, "trimmed": 0, "pieces": 0}
    for kind in KINDS:
        due = yield from store.due(kind, queues=(EXPIRE, TRIM), limit=limit, hide=60.0)
        for record in due.records:
            written = yield from store.write(_step(record))
            if isinstance(written, Written):
                counts[_name(record)] += 1
    return Swept(**counts)


def _name(record: Record) -> str:
    if record.at.kind != "claim":
        return "pieces"
    return "trimmed" if record.queue == TRIM else "forgotten"


def _step(record: Record) -> Remove | Replace:
    if record.queue == EXPIRE:
        return Remove(record.at, version=record.version)
    return _tombstone(record)


def _tombstone(record: Record) -> Replace:
    """The key and the fact stay; the result goes."""
    claim = claim_of(record)
    rest = claim.tombstone
    body = body_of(structs.replace(claim, result=NO_RESULT, spill=None, tombstone=None, finished_at=record.updated_at))
    for_ever = rest is None or rest < 0
    return Replace(
        record.at,
        body,
        DONE,
        version=record.version,
        draw=True,
        queue="" if for_ever else EXPIRE,
        due_in=None if for_ever else rest,
    )
