"""Removes expired records: the sweep, the thread that runs it, and pointers to runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from ..clock import Clock
from ..errors import CannotOpen
from ..operations import Operation, block
from ..records import (
    RECORD_KINDS,
    SELF,
    Address,
    Check,
    Conflict,
    Found,
    Outcome,
    Record,
    Remove,
    Replace,
    Write,
    Written,
    expiring_kinds,
    kinds_beside_runs,
)
from ..stores.base import Store
from ..threads import BackgroundThread, ThreadRun, at_fork
from .blobs.records import RESOURCE_KIND, delete_blobs
from .claim import (
    CLAIM,
    DONE,
    FAILED,
    HELD,
    NO_RESULT,
    REVIEW,
    RUN,
    RUN_POINTER,
    TRIMMED,
    Claim,
    body_of,
    claim_of,
    index_address,
    other_kind,
    run_address,
    short_id,
)
from .states import EXPIRE, LOOK_AGAIN, TRIM, is_expired, kept_until, pointer_of, run_pointer

__all__ = [
    "ABANDONED_AFTER",
    "HTTP_OWNER",
    "INPUT",
    "PASS",
    "Sweeper",
    "Swept",
    "forget",
    "is_of_a_run_to_come",
    "owner_of",
    "park_unfinished",
    "remove_pieces",
    "renewal",
    "run_or_claim",
    "sweep",
]


INPUT = "input-"  # how the name of a large input begins
BATCH = 50


def run_or_claim(store: Store, space: str) -> Operation[Found]:
    """Return the run or the claim in a space, whichever exists."""
    run, claim = yield from store.read_each([run_address(space), other_kind(run_address(space))])
    return run if run.record is not None and (claim.record is None or not is_expired(run.record, run.now)) else claim


def forget(store: Store, record: Record) -> Operation[None]:
    """Remove an expired claim and everything beside it, unless it was taken meanwhile."""
    if (yield from remove_pieces(store, Check(record.at, version=record.version))) >= 0:
        yield from store.write(Remove(record.at, version=record.version))
        if record.at.kind == RUN:
            yield from _drop_ids(store, [record.at.space])


def remove_pieces(store: Store, owner: Check) -> Operation[int]:
    """Remove the records beside a claim; return how many, or -1 if the claim in `owner` was taken over meanwhile."""
    gone = 0
    size = max(1, min(BATCH, store.batch_limit - 1))
    for kind in kinds_beside_runs():
        after: str | None = None
        while True:
            page = yield from store.scan(kind, space=owner.at.space, after=after, limit=size)
            old = [record for record in page.records if not is_of_a_run_to_come(record, page.now)]
            if old:
                removals = [Remove(record.at, version=record.version) for record in old]
                written = yield from _removed(store, owner, removals)
                if not isinstance(written, Written):
                    if written.at == owner.at:
                        return -1
                    continue
                gone += len(removals)
                yield from delete_blobs(old)
            after = page.after
            if after is None:
                break
    return gone


def _removed(store: Store, owner: Check, removals: Sequence[Remove]) -> Operation[Outcome]:
    """Remove pieces together with the check of their owner; where a store lands one write at a time, after it."""
    if store.batch_limit > 1:
        return (yield from store.write(owner, *removals))
    written: Outcome = yield from store.write(owner)
    for removal in removals if isinstance(written, Written) else ():
        yield from store.write(removal)
    return written


def is_of_a_run_to_come(record: Record, now: float) -> bool:
    """Return whether a record is the large input of a run that has not begun. It is stored before its run.

    Removed together with an earlier run of the key, it would leave a run that can never be executed.
    """
    named = record.at.kind == RESOURCE_KIND and record.at.key.startswith(INPUT)
    return named and record.queue == EXPIRE and record.due_at is not None and record.due_at > now


def _drop_ids(store: Store, spaces: Sequence[str]) -> Operation[None]:
    """Remove the index records of runs that were removed."""
    found = yield from store.read_each([index_address(short_id(space)) for space in spaces])
    old = [one.record for one in found if one.record is not None]
    if old:
        yield from store.write_each([[Remove(record.at, version=record.version)] for record in old])
        yield from _restore_ids(store, spaces)


def _restore_ids(store: Store, spaces: Sequence[str]) -> Operation[None]:
    """Write index records again that were removed although a run of the same key has begun meanwhile.

    That run found the index record in place and wrote none: without this it could not be found by its id.
    """
    found = yield from store.read_each([run_address(space) for space in spaces])
    begun = [
        space for space, one in zip(spaces, found, strict=True) if one.record and not is_expired(one.record, one.now)
    ]
    if begun:
        yield from store.write_each([[run_pointer(space)] for space in begun])


def owner_of(record: Record) -> Address:
    return run_address(pointer_of(record).space)


def renewal(record: Record, found: Found) -> Remove | Replace:
    """Return what to do with a pointer that is due: remove it if its run is gone, else keep it.

    A tombstone has no steps, so that pointers to steps are removed; its short id still leads to it.
    """
    owner = found.record
    if owner is None or is_expired(owner, found.now) or (_is_tombstone(owner) and record.at.kind != RUN_POINTER):
        return Remove(record.at, version=record.version)
    left = LOOK_AGAIN
    if owner.queue in (EXPIRE, TRIM) and owner.due_at is not None:
        left = max(1.0, owner.due_at - found.now)
    return Replace(record.at, None, record.state, version=record.version, queue=EXPIRE, due_in=left)


def _is_tombstone(owner: Record) -> bool:
    """Return whether a run is done and trimmed: its steps are gone."""
    return owner.state == DONE and claim_of(owner).work == TRIMMED


log = logging.getLogger("twiceproof")

PASS = 500
TOGETHER = 100  # in one commit: concurrent claims wait for no more than that


class Swept(Struct, frozen=True):
    """What one sweep did: keys removed, results trimmed to a tombstone, records beside them removed."""

    forgotten: int = 0
    trimmed: int = 0
    pieces: int = 0

    @property
    def total(self) -> int:
        return self.forgotten + self.trimmed + self.pieces


def sweep(store: Store, *, limit: int = PASS) -> Operation[Swept]:
    """Do one pass. Each write is conditional on what was read: a key that is taken meanwhile stays."""
    counts = {"forgotten": 0, "trimmed": 0, "pieces": 0}
    for kind in expiring_kinds():
        due = yield from store.due(kind, queues=(EXPIRE, TRIM), limit=limit, hide=60.0)
        for first in range(0, len(due.records), TOGETHER):
            yield from _sweep_several(store, due.records[first : first + TOGETHER], due.now, counts)
    return Swept(**counts)


def _sweep_several(store: Store, records: Sequence[Record], now: float, counts: dict[str, int]) -> Operation[None]:
    """Sweep a batch with a few reads. What lies beside a run is removed with it, in one write: all or nothing."""
    try:
        runs = [record.at.space for record in records if record.at.kind == RUN]
        beside = (
            _by_space((yield from store.beside(runs, kinds_beside_runs(), limit=store.batch_limit))) if runs else {}
        )
        asked = [at for record in records for at in _asks_for(record)]
        owners = dict(zip(asked, (yield from store.read_each(asked)), strict=True)) if asked else {}
        ends = [_End(record, _last(record, now, owners), beside.get(record.at.space, ())) for record in records]
    except CannotOpen as error:
        if len(records) == 1:  # logged at each sweep: the others must not wait for it
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
    yield from _sweep_ids(store, [end.record for end in ends if isinstance(end.write, Remove)])


def _sweep_ids(store: Store, removed: Sequence[Record]) -> Operation[None]:
    """Keep the index of short ids in line with the runs that a sweep removed."""
    runs = [record.at.space for record in removed if record.at.kind == RUN]
    if runs:
        yield from _drop_ids(store, runs)
    pointers = [pointer_of(record).space for record in removed if record.at.kind == RUN_POINTER]
    if pointers:
        yield from _restore_ids(store, pointers)


class _End(Struct, frozen=True):
    """What to write about an expired record, and what is removed with it."""

    record: Record
    write: Remove | Replace
    pieces: Sequence[Record]

    @property
    def writes(self) -> Sequence[Write]:
        return [self.write, *(Remove(piece.at, version=piece.version) for piece in self.pieces)]

    def without_the_next(self, now: float) -> _End:
        """Return the same without the large input of a run that is about to begin under the same key."""
        return structs.replace(self, pieces=[piece for piece in self.pieces if not is_of_a_run_to_come(piece, now)])


def _by_space(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.at.space, []).append(record)
    return found


def _sweep_large(store: Store, end: _End, counts: dict[str, int]) -> Operation[None]:
    """Remove the history of a run first: a crash in between leaves a claim that is still due, and no orphans."""
    gone = yield from remove_pieces(store, Check(end.record.at, version=end.record.version))
    if gone < 0:
        return
    counts["pieces"] += gone
    if isinstance((yield from store.write(end.write)), Written):
        yield from _count(_End(end.record, end.write, ()), counts)


def _count(end: _End, counts: dict[str, int]) -> Operation[None]:
    """Count what was removed; records that are kept were only looked at."""
    counts["pieces"] += len(end.pieces)
    if end.record.at.kind in (CLAIM, RUN):
        counts["trimmed" if isinstance(end.write, Replace) else "forgotten"] += 1
    elif isinstance(end.write, Remove):
        counts["pieces"] += 1
    else:
        return
    yield from delete_blobs([end.record, *end.pieces])


def _asks_for(record: Record) -> tuple[Address, ...]:
    """Return the records whose state decides whether this one may be removed."""
    kind = RECORD_KINDS[record.at.kind]
    if kind.points_to_run:
        return (owner_of(record),)
    kinds = (CLAIM, RUN) if kind.beside_run else ()  # its own time may be over before its claim has ended
    return tuple(Address(record.at.space, kind, SELF) for kind in kinds)


def _last(record: Record, now: float, owners: Mapping[Address, Found]) -> Remove | Replace:
    kind = RECORD_KINDS[record.at.kind]
    if kind.points_to_run:
        return renewal(record, owners[owner_of(record)])
    if kind.beside_run and any(_is_needed(owners[at].record) for at in _asks_for(record)):
        return Replace(record.at, None, record.state, version=record.version, queue=EXPIRE, due_in=LOOK_AGAIN)
    return Remove(record.at, version=record.version) if record.queue == EXPIRE else _tombstone(record, now)


def _is_needed(owner: Record | None) -> bool:
    """Return whether a claim or run is not over: its input and evidence are still needed."""
    return owner is not None and owner.state not in (DONE, FAILED)


def _tombstone(record: Record, now: float) -> Remove | Replace:
    """Return the write that leaves only the key and the state, for the rest of their time."""
    claim = claim_of(record)
    until = _until(record, claim, now)
    if until is not None and until <= now:
        return Remove(record.at, version=record.version)
    left = structs.replace(
        claim,
        result=NO_RESULT,
        spill=None,
        tombstone=None,
        keep=None,
        finished_at=record.updated_at,
        work=TRIMMED if claim.work else NO_RESULT,
    )
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
    """Return until when a tombstone is kept. Older ledgers do not say when the result was due: counted from now."""
    if claim.keep is None and claim.tombstone is not None:
        return None if claim.tombstone < 0 else now + claim.tombstone
    return kept_until(record, claim)


GRACE = 1.0  # seconds for a sweep under way at `stop`; the rest is left to the next one


class Sweeper:
    """Runs a sweep every `every` seconds, and repeats it while there is much to do."""

    def __init__(
        self, store: Store, *, clock: Clock, every: float, also: Sequence[Callable[[Store], Operation[int]]] = ()
    ) -> None:
        self._store = store
        self._also = also
        self._clock = clock
        self._every = every
        self._swept_at = clock.monotonic()
        self._thread = BackgroundThread(self, Sweeper._sweep, "twiceproof-sweep", grace=GRACE, finish=True)
        self._stopped = False
        self._reset()
        at_fork(self, in_child=Sweeper._reset)

    def _reset(self) -> None:
        self._at_work = False
        self._thread.reset()

    def sweep_if_due(self) -> None:
        if self._at_work or self._stopped or self._clock.monotonic() - self._swept_at < self._every:
            return
        self._swept_at = self._clock.monotonic()
        self._thread.send("sweep")

    def _sweep(self, _: ThreadRun) -> None:
        self._at_work = True
        try:
            while not self._stopped and block(sweep(self._store)).total >= PASS:
                continue
            for chore in self._also:
                if not self._stopped:
                    block(chore(self._store))
        except Exception as error:  # noqa: BLE001 - it is tried again later
            if not self._stopped:
                log.warning("sweeping failed, will try again: %s", error)
        finally:
            self._at_work = False

    def stop(self) -> None:
        self._stopped = True
        self._thread.stop(for_good=True)


HTTP_OWNER = "http-"  # how the owner of a claim that was taken over HTTP begins
ABANDONED_AFTER = 3_600.0  # seconds after the end of its lease
PARK_PAGE = 1_000
MOST_PARKED = 5_000  # parked in one go: the next is a few minutes away


def park_unfinished(store: Store) -> Operation[int]:
    """Park claims that were taken over HTTP and never ended; return how many.

    A lapsed lease is noticed only when its key is claimed again, which may never happen. An hour later the claim is
    put into review, where a person sees it. Its fence stays, so that a late report of its holder still counts.
    """
    parked, after = 0, None
    while parked < MOST_PARKED:
        page = yield from store.scan(CLAIM, state=HELD, after=after, limit=PARK_PAGE)
        for record in page.records:
            if _is_abandoned(record, page.now):
                parked += isinstance((yield from store.write(_parked(record))), Written)
        after = page.after
        if after is None:
            break
    if parked:
        log.warning(
            "%d claims were taken over HTTP and never ended, and wait for review now; look: twiceproof review list",
            parked,
        )
    return parked


def _is_abandoned(record: Record, now: float) -> bool:
    """Return whether a claim over HTTP lapsed an hour ago. The lease is checked before the body is decoded."""
    if record.lease_until is None or record.lease_until + ABANDONED_AFTER > now:
        return False
    try:
        claim = claim_of(record)
    except CannotOpen:
        return False
    return claim.owner.startswith(HTTP_OWNER)


def _parked(record: Record) -> Replace:
    reason = "its holder took it over HTTP and never said what came of it; whether its work was done is unknown"
    body = body_of(structs.replace(claim_of(record), reason=reason))
    return Replace(record.at, body, REVIEW, version=record.version)
