"""Forgets what may be forgotten; the sweeper thread; pointers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from ..clock import Clock
from ..errors import CannotOpen
from ..operations import Operation, block
from ..records import Address, Check, Conflict, Found, Insert, Record, Remove, Replace, Write, Written
from ..stores.base import Store
from .blobs.records import delete_blobs
from .claim import (
    CLAIM,
    DONE,
    FAILED,
    HELD,
    NO_RESULT,
    REVIEW,
    RUN,
    SELF,
    TRIMMED,
    Claim,
    body_of,
    claim_of,
    other_kind,
    run_address,
)
from .run_ids import RUN_POINTER, index_address, short_id
from .states import EXPIRE, TRIM, is_expired, kept_until

__all__ = [
    "ABANDONED_AFTER",
    "EXTERNAL",
    "HTTP_OWNER",
    "INPUT",
    "PASS",
    "POINTERS",
    "RUN_RECORD_KINDS",
    "Pointer",
    "Sweeper",
    "Swept",
    "first_pointer",
    "forget",
    "is_of_a_run_to_come",
    "owner_of",
    "park_unfinished",
    "pointer_of",
    "pointer_write",
    "remove_pieces",
    "renewal",
    "run_or_claim",
    "run_pointer",
    "sweep",
]


INPUT = "input-"  # how the name of a large input begins
RUN_RECORD_KINDS = ("step", "arrival", "approval", "evidence", "resource", "undo")
BATCH = 50


def run_or_claim(store: Store, space: str) -> Operation[Found]:
    """Whichever of them is in this space."""
    run, claim = yield from store.read_each([run_address(space), other_kind(run_address(space))])
    return run if run.record is not None and (claim.record is None or not is_expired(run.record, run.now)) else claim


def forget(store: Store, record: Record) -> Operation[None]:
    """A claim that may be forgotten, and everything beside it, unless somebody took it meanwhile."""
    if (yield from remove_pieces(store, Check(record.at, version=record.version))) >= 0:
        yield from store.write(Remove(record.at, version=record.version))
        if record.at.kind == RUN:
            yield from _drop_ids(store, [record.at.space])


def remove_pieces(store: Store, owner: Check) -> Operation[int]:
    """How many went; -1 if the claim is no longer the one in `owner`: whoever took it may need the rest."""
    gone = 0
    size = max(1, min(BATCH, store.batch_limit - 1))
    for kind in RUN_RECORD_KINDS:
        after: str | None = None
        while True:
            page = yield from store.scan(kind, space=owner.at.space, after=after, limit=size)
            old = [record for record in page.records if not is_of_a_run_to_come(record, page.now)]
            if old:
                removals = [Remove(record.at, version=record.version) for record in old]
                written = yield from store.write(owner, *removals)
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


def is_of_a_run_to_come(record: Record, now: float) -> bool:
    """A large input is there before its run, which makes it its own as it begins; without a run, its time runs out.

    Cleared away with an earlier run of the key, it would leave a run that can never be carried out.
    """
    named = record.at.kind == "resource" and record.at.key.startswith(INPUT)
    return named and record.queue == EXPIRE and record.due_at is not None and record.due_at > now


EXTERNAL = "external"  # an id that the outside gave
POINTERS = (EXTERNAL, "callback", RUN_POINTER)
LOOK_AGAIN = 30 * 86_400.0
LONG_AFTER = 365 * 86_400.0


class Pointer(Struct, frozen=True, omit_defaults=True):
    """Which unit of work, by its space, and which step of it."""

    space: str
    step: str = ""
    key: str = ""
    flow: str = ""


def pointer_of(record: Record) -> Pointer:
    return msgspec.json.decode(record.body, type=Pointer)


def pointer_write(at: Address, pointer: Pointer, due_in: float = LOOK_AGAIN) -> Insert:
    """Due from time to time, to see whether what it points to is still there."""
    return Insert(at, body_of(pointer), queue=EXPIRE, due_in=due_in)


def run_pointer(space: str) -> Insert:
    """The index record by which a run is found by its short id. It is removed with its run, and due without one."""
    return pointer_write(index_address(short_id(space)), Pointer(space), LONG_AFTER)


def first_pointer(write: Write) -> Insert | None:
    """Goes with the first write of a run, into the same commit."""
    return run_pointer(write.at.space) if type(write) is Insert and write.at.kind == RUN else None


def _drop_ids(store: Store, spaces: Sequence[str]) -> Operation[None]:
    """Remove the index records of runs that were forgotten."""
    found = yield from store.read_each([index_address(short_id(space)) for space in spaces])
    old = [one.record for one in found if one.record is not None]
    if old:
        yield from store.write_each([[Remove(record.at, version=record.version)] for record in old])
        yield from _restore_ids(store, spaces)


def _restore_ids(store: Store, spaces: Sequence[str]) -> Operation[None]:
    """After index records were removed: a run of the same key may have begun meanwhile.

    It found the index record there and wrote none, so that without this it could not be found by its id.
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
    """A pointer that is due: it goes if its unit of work has gone, or only left a tombstone, which has an id but no
    steps."""
    owner = found.record
    if owner is None or is_expired(owner, found.now) or (_is_tombstone(owner) and record.at.kind != RUN_POINTER):
        return Remove(record.at, version=record.version)
    left = LOOK_AGAIN
    if owner.queue in (EXPIRE, TRIM) and owner.due_at is not None:
        left = max(1.0, owner.due_at - found.now)
    return Replace(record.at, None, record.state, version=record.version, queue=EXPIRE, due_in=left)


def _is_tombstone(owner: Record) -> bool:
    """Done, and trimmed: its history is gone, and with it the step that was pointed to."""
    return owner.state == DONE and claim_of(owner).work == TRIMMED


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
        beside = _by_space((yield from store.beside(runs, RUN_RECORD_KINDS, limit=store.batch_limit))) if runs else {}
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
    yield from _sweep_ids(store, [end.record for end in ends if isinstance(end.write, Remove)])


def _sweep_ids(store: Store, removed: Sequence[Record]) -> Operation[None]:
    """What a sweep leaves to do about the index of short ids."""
    runs = [record.at.space for record in removed if record.at.kind == RUN]
    if runs:
        yield from _drop_ids(store, runs)
    pointers = [pointer_of(record).space for record in removed if record.at.kind == RUN_POINTER]
    if pointers:
        yield from _restore_ids(store, pointers)


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
    yield from delete_blobs([end.record, *end.pieces])


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
    """Of a claim in an older ledger it is not known when its result was due: this look has moved that."""
    if claim.keep is None and claim.tombstone is not None:
        return None if claim.tombstone < 0 else now + claim.tombstone
    return kept_until(record, claim)


GRACE = 1.0  # for a sweep when we are stopped: what is left lies there for the next one


class Sweeper:
    """Asked often, it does something every `every` seconds, and goes on while there is much to do."""

    def __init__(
        self, store: Store, *, clock: Clock, every: float, also: Sequence[Callable[[Store], Operation[int]]] = ()
    ) -> None:
        self._store = store
        self._also = also
        self._clock = clock
        self._every = every
        self._swept_at = clock.monotonic()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def sweep_if_due(self) -> None:
        at_work = self._thread is not None and self._thread.is_alive()
        if at_work or self._stopped or self._clock.monotonic() - self._swept_at < self._every:
            return
        self._swept_at = self._clock.monotonic()
        self._thread = threading.Thread(target=self._tidy_up, name="twiceproof-sweep", daemon=True)
        self._thread.start()

    def _tidy_up(self) -> None:
        try:
            while not self._stopped and block(sweep(self._store)).total >= PASS:
                continue
            for chore in self._also:
                if not self._stopped:
                    block(chore(self._store))
        except Exception as error:  # noqa: BLE001 - it will be tried again, and nobody waits for it
            if not self._stopped:
                log.warning("sweeping failed, will try again: %s", error)

    def stop(self) -> None:
        self._stopped = True
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(GRACE)


HTTP_OWNER = "http-"  # how the owner of a claim that was taken over HTTP begins
ABANDONED_AFTER = 3_600.0  # seconds after the end of its lease
PARK_PAGE = 1_000
MOST_PARKED = 5_000  # parked in one go: the next is a few minutes away


def park_unfinished(store: Store) -> Operation[int]:
    """Parks claims that were taken over HTTP and never ended; returns how many.

    A lease that is over is noticed only when its key is asked for again, which may be never. An hour later the claim is
    in review, where a person sees it. Its fence stays, so that a late answer of its holder still counts.
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
    """By what its record says, before its body is read: a holder here renews."""
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
