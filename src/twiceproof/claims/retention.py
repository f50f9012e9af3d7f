"""Forgets what may be forgotten: in small batches, and never what is held."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from ..drive import Operation
from ..errors import CannotOpen
from ..records import Address, Check, Conflict, Found, Record, Remove, Replace, Write, Written
from ..stores.base import Store
from .claim import CLAIM, DONE, FAILED, NO_RESULT, RUN, SELF, TRIMMED, Claim, body_of, claim_of
from .pieces import PIECES, is_of_a_run_to_come, remove_pieces
from .pointer import LOOK_AGAIN, POINTERS, owner_of, renewal
from .shelving import drop
from .states import EXPIRE, TRIM, kept_until

__all__ = ["PASS", "Swept", "sweep"]

log = logging.getLogger("twiceproof")

BESIDE = ("evidence", "resource")  # with a time of their own, which may be over before their claim has ended
KINDS = (RUN, CLAIM, *BESIDE, "link", "letter", "mark", "duplicates", "notice", "worker", *POINTERS)
PASS = 500
TOGETHER = 100  # in one commit: claims that come meanwhile wait for no more than that


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
        for first in range(0, len(due.records), TOGETHER):
            yield from _sweep_several(store, due.records[first : first + TOGETHER], due.now, counts)
    return Swept(**counts)


def _sweep_several(store: Store, records: Sequence[Record], now: float, counts: dict[str, int]) -> Operation[None]:
    """All of them with a handful of questions. What belongs to a run goes with it, in one write: all or nothing."""
    try:
        runs = [record.at.space for record in records if record.at.kind == RUN]
        beside = _by_space((yield from store.beside(runs, PIECES, limit=store.batch_limit))) if runs else {}
        asked = [at for record in records for at in _asks_for(record)]
        owners = dict(zip(asked, (yield from store.read_each(asked)), strict=True)) if asked else {}
        ends = [_End(record, _last(record, now, owners), beside.get(record.at.space, ())) for record in records]
    except CannotOpen as error:
        if len(records) == 1:  # said each time it comes round: the others must not wait for it
            log.error("left lying: %s", error)
            return
        for record in records:
            yield from _sweep_several(store, [record], now, counts)
        return
    large = [end for end in ends if len(end.pieces) >= store.batch_limit]
    small = [end.without_the_next(now) for end in ends if len(end.pieces) < store.batch_limit]
    answers = yield from store.write_each([end.writes for end in small])
    for end, answer in zip(small, answers, strict=True):
        if isinstance(answer, Exception) and not isinstance(answer, CannotOpen):
            raise answer
        if isinstance(answer, Written):
            yield from _count(end, counts)
        elif isinstance(answer, Conflict) and answer.at != end.record.at:  # a piece came or went in between
            yield from _sweep_large(store, end, counts)
    for end in large:
        yield from _sweep_large(store, end, counts)


class _End(Struct, frozen=True):
    """What becomes of a record whose time is over, and what goes with it."""

    record: Record
    write: Remove | Replace
    pieces: Sequence[Record]

    @property
    def writes(self) -> Sequence[Write]:
        return [self.write, *(Remove(piece.at, version=piece.version) for piece in self.pieces)]

    def without_the_next(self, now: float) -> _End:
        """The large input of a run that is about to begin under the same key lies there, too: it stays."""
        return structs.replace(self, pieces=[piece for piece in self.pieces if not is_of_a_run_to_come(piece, now)])


def _by_space(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.at.space, []).append(record)
    return found


def _sweep_large(store: Store, end: _End, counts: dict[str, int]) -> Operation[None]:
    """The history of a run goes first: a crash in between leaves a claim that is still due, and no orphans."""
    gone = yield from remove_pieces(store, Check(end.record.at, version=end.record.version))
    if gone < 0:
        return
    counts["pieces"] += gone
    if isinstance((yield from store.write(end.write)), Written):
        yield from _count(_End(end.record, end.write, ()), counts)


def _count(end: _End, counts: dict[str, int]) -> Operation[None]:
    """What is kept on was only looked at."""
    counts["pieces"] += len(end.pieces)
    if end.record.at.kind in (CLAIM, RUN):
        counts["trimmed" if isinstance(end.write, Replace) else "forgotten"] += 1
    elif isinstance(end.write, Remove):
        counts["pieces"] += 1
    else:
        return
    yield from drop([end.record, *end.pieces])


def _asks_for(record: Record) -> tuple[Address, ...]:
    """Whose state decides whether it may go."""
    if record.at.kind in POINTERS:
        return (owner_of(record),)
    kinds = (CLAIM, RUN) if record.at.kind in BESIDE else ()
    return tuple(Address(record.at.space, kind, SELF) for kind in kinds)


def _last(record: Record, now: float, owners: Mapping[Address, Found]) -> Remove | Replace:
    if record.at.kind in POINTERS:
        return renewal(record, owners[owner_of(record)])
    if record.at.kind in BESIDE and any(_is_needed(owners[at].record) for at in _asks_for(record)):
        return Replace(record.at, None, record.state, version=record.version, queue=EXPIRE, due_in=LOOK_AGAIN)
    return Remove(record.at, version=record.version) if record.queue == EXPIRE else _tombstone(record, now)


def _is_needed(owner: Record | None) -> bool:
    """The input of a run that nobody has come for yet, what a late holder said about an open question."""
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
