"""Ledger: the entries of one run, recorded and pending, and how they are written.

A completion is *pending* from the moment its step returns. The next write takes all pending entries along: the next
step before it acts, the run's end, or the flusher if the flow is busy with something else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct, structs

from ...claims.blobs.records import RESOURCE_KIND, externalise
from ...claims.claim import NO_RESULT, Fault, LostHold, Settlement, Spill, body_of
from ...claims.error_messages import DURING, claim_lost, inherited
from ...claims.held_claim import INHERITED, HeldClaim
from ...claims.manager import ClaimManager, interrupt_requested
from ...claims.queries import KEEP, Evidence, evidence_write
from ...claims.states import EXPIRE
from ...errors import PayloadMismatch, StoreError
from ...operations import Operation
from ...records import Address, Check, Conflict, Insert, Record, Replace, Write, Written, record_kind
from ...stores.base import Store, scan_all
from .ledger_flusher import (
    FairLock,
    LateMismatch,
    LedgerFlusher,
    PendingEntry,
    first_of,
    linked_messages,
    place_of_failure,
    size_of,
)
from .step_identity import UNDO

if TYPE_CHECKING:
    from ...outbox.linked import LinkedMessage

__all__ = [
    "RETRY",
    "STARTED",
    "STEP_DONE",
    "STEP_FAILED",
    "STEP_KIND",
    "UNKNOWN",
    "WAITS",
    "Entry",
    "EntryNote",
    "Ledger",
    "entries_in",
    "entries_up_to",
    "entry_of",
    "entry_write",
    "in_order",
    "tried_anew",
]


STEP_KIND = record_kind("step", beside_run=True)
# Its start is recorded; completed; failed for good; to be attempted again; outcome unknown, for a person; a wait.
STARTED, STEP_DONE, STEP_FAILED, RETRY, UNKNOWN, WAITS = "started", "done", "failed", "retry", "unknown", "waits"


class EntryNote(Struct, frozen=True, omit_defaults=True, gc=False):
    """The body of an entry's record; state and times are the record's own. Stored names stay as they were."""

    asked: str = ""  # its arguments, a digest each
    repeat: str = ""
    starts: int = 1
    first_at: float | None = None  # the ledger's time at the first start
    began_at: float | None = None  # and at the latest; None: unknown
    not_before: float | None = None  # when it may be attempted, probed or resumed
    result: Raw = NO_RESULT
    spill: Spill | None = None
    fault: Fault | None = None
    reason: str = ""
    ambiguous: bool = False  # an attempt ended without an answer: it may have happened
    unclassified: bool = False  # an error did not tell whether it happened, such as a bug
    final: bool = False  # the last attempt ended with an error that no retry cures
    policy: str = ""  # the class of the last error, if the step has a retry policy for it
    settled: Settlement | None = None
    concurrent: bool = False  # other calls were under way at the same time
    order: int = 0  # its number among the run's completions: undo goes backwards
    external: str = ""  # the id that the destination gave it
    mistyped: bool = False  # its result did not fit its declared type when it was recorded
    place: str = ""  # the branch of a gathering that it ran in
    unique: bool = False  # no other call has its id
    looks: int = 0  # looks at its destination that failed since its latest start

    @property
    def loose(self) -> bool:
        """Whether its result is not validated: it never fitted its type, or a person gave it."""
        return self.mistyped or self.settled is not None


class Entry(Struct, frozen=True, gc=False):
    """One entry. `version` is the store's; empty until it was written."""

    name: str
    state: str
    note: EntryNote
    version: str = ""
    at: float = 0.0  # when it was written


_decode = msgspec.json.Decoder(EntryNote).decode


def entry_of(record: Record) -> Entry:
    return Entry(record.at.key, record.state, _decode(record.body), record.version, record.updated_at)


def entry_write(space: str, entry: Entry) -> Insert | Replace:
    """Make its write, conditional on the version: an entry that a person settled meanwhile is not overwritten."""
    at, body = Address(space, STEP_KIND, entry.name), body_of(entry.note)
    if not entry.version:
        return Insert(at, body, entry.state)
    return Replace(at, body, entry.state, version=entry.version)


def tried_anew(entry: Entry) -> Entry:
    """Reset a failed entry that a person asked to retry: its attempts count from the beginning."""
    note = structs.replace(
        entry.note,
        starts=0,
        first_at=None,
        began_at=None,
        not_before=None,
        ambiguous=False,
        unclassified=False,
        final=False,
    )
    return structs.replace(entry, state=RETRY, note=note)


def entries_in(store: Store, space: str) -> Operation[list[Entry]]:
    """Return a run's entries in the order of their completion; those that have not ended come last."""
    records = yield from scan_all(store, STEP_KIND, space=space)
    return in_order(map(entry_of, records))


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: (not entry.note.order, entry.note.order, entry.at))


def entries_up_to(store: Store, space: str, most: int, *, all_done: bool) -> Operation[list[Entry]]:
    """Return a run's entries; of a run that has more, the first `most` by name, as many of those that are not done, and
    what undid them. `all_done`: there are none that are not."""
    records = yield from scan_all(store, STEP_KIND, space=space, most=most)
    if len(records) == most:
        for state in () if all_done else (UNKNOWN, STEP_FAILED, STARTED, RETRY, WAITS):
            records += yield from scan_all(store, STEP_KIND, space=space, state=state, most=most // 5)
        undone = [Address(space, STEP_KIND, f"{UNDO}{one.at.key}") for one in records[: most // 5]]
        records += [one.record for one in (yield from store.read_each(undone)) if one.record is not None]
    return list({record.at: entry_of(record) for record in records}.values())


End = Callable[[int], Replace]  # makes the run's final write, given the fence

PAGE = 1_000


class Ledger:
    """Entries by name. They are written only while the run's claim is still ours."""

    def __init__(self, claims: ClaimManager, hold: HeldClaim, flusher: LedgerFlusher) -> None:
        self.entries: dict[str, Entry] = {}
        self.hold = hold
        self.interrupted = False  # the fence was changed to make this holder read its claim again
        self._claims = claims
        self._flusher = flusher
        self.open_gatherings = 0  # while there are any, completions have no order
        self.latest = 0.0  # the time of the latest completion
        self._pending: dict[str, PendingEntry] = {}
        self._noted = 0  # how many entries were noted, and how many of them are acknowledged
        self._landed = 0
        self._fence = hold.held.fence  # of the last write
        self._mutex = threading.Lock()
        self._turn = FairLock()
        self._store_time = (0.0, 0.0)  # the latest time that the store gave, and our own at that moment

    # -- reading ---------------------------------------------------------------------------------

    def load(self) -> Operation[None]:
        """Read everything that is recorded so far."""
        after: str | None = None
        while True:
            space = self.hold.held.at.space
            page = yield from self._claims.store.scan(STEP_KIND, space=space, after=after, limit=PAGE)
            self.entries.update((record.at.key, entry_of(record)) for record in page.records)
            self.set_store_time(page.now)
            if page.after is None:
                self.latest = max(
                    (entry.at for entry in self.entries.values() if entry.state == STEP_DONE), default=0.0
                )
                return
            after = page.after

    def set_store_time(self, now: float) -> None:
        self._store_time = (now, self._claims.clock.monotonic())

    def now(self) -> float:
        """Return an estimate of the store's time, without asking it."""
        then, here = self._store_time
        return then + self._claims.clock.monotonic() - here

    # -- writing ---------------------------------------------------------------------------------

    def note(self, entry: Entry, *pieces: Insert | LinkedMessage) -> Entry:
        """Record an entry here, and in the store with the next write."""
        if self.open_gatherings and not entry.note.concurrent:
            entry = structs.replace(entry, note=structs.replace(entry.note, concurrent=True))
        with self._mutex:
            self._keep(entry)
            self._pending[entry.name] = PendingEntry.of(entry, pieces)
            self._noted += 1
        self._flusher.schedule(self)
        return entry

    def recorded(self, entry: Entry, written: Written) -> None:
        """Take over an entry that was written in the transaction of the step's own work."""
        self.set_store_time(written.now)
        with self._mutex:
            self._keep(structs.replace(entry, version=written.version, at=written.now))

    def _keep(self, entry: Entry) -> None:
        self.entries[entry.name] = entry
        if entry.state == STEP_DONE and entry.at > self.latest:
            self.latest = entry.at

    @property
    def oldest(self) -> Entry | None:
        """The entry that has been pending for longest."""
        with self._mutex:
            return next((one.entry for one in self._pending.values()), None)

    def pending_message(self, at: Address) -> LinkedMessage | None:
        """Return the message of this run that will be written there."""
        with self._mutex:
            return next((one for each in self._pending.values() for one in each.messages if one.at == at), None)

    @property
    def backlog(self) -> int:
        """How many entries are not acknowledged: a write under way can be lost, too."""
        return self._noted - self._landed

    def flush(self, *more: Write, end: End | None = None) -> Operation[Conflict | None]:
        """Write everything pending, and `more`: all of it is acknowledged when this returns.

        `end` makes the run's final write, given the fence. A conflict is with a write of `more`: nothing was written
        then. Waits for a flush under way: it may hold completions of this branch.
        """
        noted = self._noted
        if self._landed >= noted and not more and end is None:
            return None
        if not self._turn.take_now():
            yield from self._turn.take()
        try:
            if self._landed >= noted and not more and end is None:
                return None  # another flush wrote ours, too; what came since is flushed by those who noted it
            return (yield from self._flush(more, end))
        except LateMismatch:  # a replay makes anew what is recorded nowhere: the call that sends, and those after it
            with self._mutex:
                self._pending = {name: one for name, one in self._pending.items() if one.entry.version}
            raise
        finally:
            self._turn.give()

    def flush_in_background(self) -> Operation[None]:
        """The same for the flusher, which does not wait for a flush under way but comes again."""
        if not self._turn.take_now():
            self._flusher.schedule(self)
            return
        try:
            yield from self._flush((), None)
        finally:
            self._turn.give()

    def _flush(self, more: Sequence[Write], end: End | None) -> Operation[Conflict | None]:
        pending, noted = self._take_pending()
        if not pending and not more and end is None:
            return None
        try:
            if self._claims.blobs is not None:
                yield from self._place(pending)
            room = max(1, self._claims.store.batch_limit - len(more) - 1)
            if size_of(pending) > room:
                yield from self._land_in_parts(pending, room)
            refused = yield from self._land(pending, more, end)
        except BaseException as error:  # not acknowledged: the next flush writes it again, and raises if it cannot
            if any(one.messages for one in pending):
                yield from self._save_apart(pending, error)
            self._put_back(pending)
            raise
        if refused is not None:
            self._put_back(pending)
        else:
            self._landed = noted
        return refused

    def _place(self, pending: list[PendingEntry]) -> Operation[None]:
        """Put large values into the blob store first: a record must not refer to a value that is not there."""
        for index, one in enumerate(pending):
            if one.pieces and self._claims.blobs is not None:
                placed = yield from externalise(self._claims.blobs, one.pieces)
                pending[index] = structs.replace(one, pieces=tuple(placed))

    def _save_apart(self, pending: list[PendingEntry], error: BaseException) -> Operation[None]:
        """After a commit with messages failed: write what came before. A user's transaction may hold the lane of the
        first; or one is refused.
        """
        if before := place_of_failure(pending, error):
            with contextlib.suppress(StoreError):
                yield from self._land(pending[:before], (), None)
                del pending[:before]
        if isinstance(error, PayloadMismatch):
            self._put_back(pending)
            raise LateMismatch(str(error), **error.data) from None

    def _take_pending(self) -> tuple[list[PendingEntry], int]:
        with self._mutex:
            taken = list(self._pending.values())
            self._pending = {}
            return taken, self._noted

    def _put_back(self, pending: list[PendingEntry]) -> None:
        """Put entries back before those noted since, which are newer for the same step."""
        with self._mutex:
            self._pending = {one.entry.name: one for one in pending} | self._pending

    def _land_in_parts(self, pending: list[PendingEntry], room: int) -> Operation[None]:
        """Write in parts, each under the same condition, until the rest fits into one batch."""
        while size_of(pending) > room:
            part = first_of(pending, room)
            yield from self._land(part, (), None)
            del pending[: len(part)]

    def _land(self, pending: list[PendingEntry], more: Sequence[Write], end: End | None) -> Operation[Conflict | None]:
        store, at = self._claims.store, self.hold.held.at
        if self.hold.lost is INHERITED:
            raise inherited(self.hold)
        linked = linked_messages(at.space, pending)
        while True:
            fence = self._known_fence()
            ours = end(fence) if end is not None else Check(at, fence=fence)
            writes = [write for one in pending for write in (entry_write(at.space, one.entry), *one.pieces)]
            if linked is None:
                written = yield store.write(ours, *writes, *more)
            else:
                written = yield store.write(ours, *writes, *more, linked=linked.writes())
            self.set_store_time(written.now)
            if isinstance(written, Written):
                self._remember(pending, written)
                return None
            if isinstance(written, Conflict) and any(write.at == written.at for write in more):
                return written
            if linked is not None and isinstance(written, Conflict) and linked.take_in(written):
                continue
            if (yield from self._has_landed(pending)):
                return None

    def _known_fence(self) -> int:
        """Return the claim's fence. If the heartbeat met a changed one first, it is an interrupt for this run, too."""
        fence = self.hold.held.fence
        if fence != self._fence:
            self._fence = fence
            self.interrupted = True
        return fence

    def _remember(self, landed: list[PendingEntry], written: Written) -> None:
        """Keep the versions of written entries, except completed ones: those are not written again."""
        open_ones = [one.entry for one in landed if one.entry.state != STEP_DONE]
        if open_ones:
            with self._mutex:
                for entry in open_ones:
                    self._learn(entry, written.version, written.now)

    def _learn(self, entry: Entry, version: str, at: float) -> None:
        """Keep the store's version of an entry, also for what was noted about the same step since."""
        latest = self.entries[entry.name]
        if latest is entry:
            self._keep(structs.replace(entry, version=version, at=at))
            return
        self.entries[entry.name] = structs.replace(latest, version=version)
        if entry.name in self._pending:
            self._pending[entry.name] = structs.replace(self._pending[entry.name], entry=self.entries[entry.name])

    def _has_landed(self, pending: list[PendingEntry]) -> Operation[bool]:
        """After a refused write: whether it was written all the same. If the claim is lost, entries become evidence."""
        found = yield from self._claims.store.read(self.hold.held.at)
        held = self.hold.held
        if found.record is not None and found.record.fence == held.fence:
            return (yield from self._are_there(pending))
        if interrupt_requested(found.record, held):
            self.hold.held = structs.replace(held, fence=found.record.fence)
            return False
        yield from self.keep_as_evidence(pending)
        self.hold.lost = LostHold(found.record.state, "") if found.record else LostHold("", "")
        raise claim_lost(self.hold, self.hold.lost, DURING)

    def _are_there(self, pending: list[PendingEntry]) -> Operation[bool]:
        """A batch is written as a whole, so any of its entries tells. Also keeps the versions that it finds."""
        landed = False
        for index, one in reversed(list(enumerate(pending))):
            entry = one.entry
            write = entry_write(self.hold.held.at.space, entry)
            record = (yield from self._claims.store.read(write.at)).record
            landed = record is not None and (record.body, record.state) == (write.body, write.state)
            if record is not None and _came_late(record, entry):
                self._adopt(entry_of(record))
                del pending[index]
                continue
            known = structs.replace(entry, version=record.version if record else "")
            pending[index] = structs.replace(one, entry=known)
            with self._mutex:
                if self.entries[entry.name] is entry:
                    self.entries[entry.name] = known
        return landed

    def _adopt(self, entry: Entry) -> None:
        with self._mutex:
            self.entries[entry.name] = entry

    def keep_as_evidence(self, pending: list[PendingEntry]) -> Operation[None]:
        """Keep completions that came too late to be recorded as evidence."""
        held = self.hold.held
        for one in pending:
            entry = one.entry
            if entry.state in (STEP_DONE, STEP_FAILED):
                note = entry.note
                found = Evidence(held.owner, held.fence, note.result, note.spill, note.fault, entry.name)
                values = [piece for piece in one.pieces if piece.at.kind == RESOURCE_KIND]  # messages are not sent
                large = [structs.replace(piece, queue=EXPIRE, due_in=KEEP) for piece in values]
                yield from self._claims.store.write(evidence_write(held.at.space, found), *large)


def _came_late(record: Record, entry: Entry) -> bool:
    """Whether a commit of ours was written after it was given up: it counts, whatever was noted since."""
    return record.state == STEP_DONE != entry.state
