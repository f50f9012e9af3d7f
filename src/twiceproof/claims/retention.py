"""Forgets what may be forgotten: in small batches, and never what is held."""

from __future__ import annotations

import logging

from msgspec import Struct, structs

from ..drive import Operation
from ..errors import CannotOpen
from ..records import Address, Check, Record, Remove, Replace, Written
from ..stores.base import Store
from .claim import DONE, FAILED, KIND, NO_RESULT, SELF, TRIMMED, Claim, body_of, claim_of
from .pieces import remove_pieces
from .pointer import LOOK_AGAIN, POINTERS, renewal
from .shelving import drop
from .states import EXPIRE, TRIM, kept_until

__all__ = ["PASS", "Swept", "sweep"]

log = logging.getLogger("twiceproof")

BESIDE = ("evidence", "resource")  # with a time of their own, which may be over before their claim has ended
KINDS = (KIND, *BESIDE, "link", "letter", "mark", "duplicates", "notice", "worker", *POINTERS)
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
            try:
                yield from _sweep_one(store, record, due.now, counts)
            except CannotOpen as error:  # said each time it comes round: the others must not wait for it
                log.error("left lying: %s", error)
    return Swept(**counts)


def _sweep_one(store: Store, record: Record, now: float, counts: dict[str, int]) -> Operation[None]:
    gone = yield from _clear(store, record)
    if gone < 0:
        return
    counts["pieces"] += gone
    write = yield from _last(store, record, now)
    written = yield from store.write(write)
    if isinstance(written, Written) and _counts(write):
        counts[_name(write)] += 1
        yield from drop([record])


def _clear(store: Store, record: Record) -> Operation[int]:
    """The history of a run goes first: a crash in between leaves a claim that is still due, and no orphans."""
    if record.at.kind != KIND or not claim_of(record).work:
        return 0
    return (yield from remove_pieces(store, Check(record.at, version=record.version)))


def _name(write: Remove | Replace) -> str:
    if write.at.kind != KIND:
        return "pieces"
    return "trimmed" if isinstance(write, Replace) else "forgotten"


def _counts(write: Remove | Replace) -> bool:
    """What is kept on was only looked at."""
    return not (isinstance(write, Replace) and write.at.kind != KIND)


def _last(store: Store, record: Record, now: float) -> Operation[Remove | Replace]:
    if record.at.kind in POINTERS:
        return (yield from renewal(store, record))
    if record.at.kind in BESIDE and (yield from _is_needed(store, record)):
        return Replace(record.at, None, record.state, version=record.version, queue=EXPIRE, due_in=LOOK_AGAIN)
    return Remove(record.at, version=record.version) if record.queue == EXPIRE else _tombstone(record, now)


def _is_needed(store: Store, record: Record) -> Operation[bool]:
    """The input of a run that nobody has come for yet, what a late holder said about an open question."""
    owner = (yield from store.read(Address(record.at.space, KIND, SELF))).record
    return owner is not None and owner.state not in (DONE, FAILED)


def _tombstone(record: Record, now: float) -> Remove | Replace:
    """The key and the fact stay, for the rest of their time; the result and the input go."""
    claim = claim_of(record)
    until = _until(record, claim, now)
    if until is not None and until <= now:
        return Remove(record.at, version=record.version)
    left = structs.replace(
        claim, result=NO_RESULT, spill=None, tombstone=None, keep=None, finished_at=record.updated_at,
        work=TRIMMED if claim.work else NO_RESULT,
    )  # fmt: skip
    return Replace(
        record.at,
        body_of(left),
        DONE,
        version=record.version,
        draw=True,
        queue="" if until is None else EXPIRE,
        due_in=None if until is None else until - now,
    )


def _until(record: Record, claim: Claim, now: float) -> float | None:
    """Of a claim in an older ledger it is not known when its result was due: this look has moved that."""
    if claim.keep is None and claim.tombstone is not None:
        return None if claim.tombstone < 0 else now + claim.tombstone
    return kept_until(record, claim)
