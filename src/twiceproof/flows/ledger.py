"""The ledger of one run in this process: what is recorded, and what is on its way to be.

A completion is *pending* from the moment its step returns. Whoever writes next takes everything pending along: the next
step before it acts, the run's end, or the courier if the flow is busy with something else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from msgspec import structs

from ..claims.claims import Claims, is_beckoned
from ..claims.evidence import Evidence, evidence_write
from ..claims.hold import Hold
from ..claims.outcomes import LostHold
from ..claims.refusals import DURING, claim_lost
from ..drive import Operation
from ..records import Check, Conflict, Insert, Replace, Write, Written
from ..stores.bell import Bell
from .courier import Courier
from .entry import DONE, FAILED, KIND, Entry, entry_of, entry_write

__all__ = ["Ledger"]

End = Callable[[int], Replace]  # the run's last write, given the fence

PAGE = 1_000
AWAY_PAUSE = 0.05


class Ledger:
    """Entries by name. Written only on condition that the run's claim is still ours."""

    def __init__(self, claims: Claims, hold: Hold, courier: Courier) -> None:
        self.entries: dict[str, Entry] = {}
        self.hold = hold
        self.beckoned = False  # somebody drew a new fence to have our attention
        self._claims = claims
        self._courier = courier
        self._pending: list[Entry] = []
        self._pieces: list[Insert] = []  # resources beside them
        self._away = False  # the courier is writing for us
        self._mutex = threading.Lock()
        self._bell = Bell()
        self._heard = (0.0, 0.0)  # the store's time when we last heard of it, and ours

    # -- reading ---------------------------------------------------------------------------------

    def load(self) -> Operation[None]:
        """Everything recorded so far, read once."""
        after: str | None = None
        while True:
            space = self.hold.held.at.space
            page = yield from self._claims.store.scan(KIND, space=space, after=after, limit=PAGE)
            self.entries.update((record.at.key, entry_of(record)) for record in page.records)
            self.hear(page.now)
            if page.after is None:
                return
            after = page.after

    def hear(self, now: float) -> None:
        self._heard = (now, self._claims.clock.monotonic())

    def now(self) -> float:
        """The store's time, as far as it can be told without asking."""
        then, here = self._heard
        return then + self._claims.clock.monotonic() - here

    # -- writing ---------------------------------------------------------------------------------

    def note(self, entry: Entry, *pieces: Insert) -> None:
        """Recorded here, and with the next write in the store."""
        with self._mutex:
            self.entries[entry.name] = entry
            self._pending.append(entry)
            self._pieces += pieces
        self._courier.mind(self)

    @property
    def oldest(self) -> Entry | None:
        """What has been pending for longest."""
        pending = self._pending
        return pending[0] if pending else None

    def flush(self, *more: Write, end: End | None = None) -> Operation[Conflict | None]:
        """Write everything pending, and what is given: all acknowledged when this returns.

        `end` makes the run's last write, given the fence. A conflict is with something given in `more`: nothing of
        that write landed.
        """
        while self._away:
            yield from self._bell.pause("", AWAY_PAUSE)
        pending, pieces = self._take_pending()
        if not pending and not more and end is None:
            return None
        refused = yield from self._write(pending, pieces, more, end)
        if refused is not None:
            self._put_back(pending, pieces)
        return refused

    def flush_away(self) -> Operation[None]:
        """The same, by the courier. The flow's own next write waits for it."""
        self._away = True
        pending, pieces = self._take_pending()
        try:
            if pending:
                yield from self._write(pending, pieces, (), None)
        except BaseException:  # not acknowledged: the flow writes it again, and hears why if it cannot
            self._put_back(pending, pieces)
            raise
        finally:
            self._away = False
            self._bell.ring_all()

    def _take_pending(self) -> tuple[list[Entry], list[Insert]]:
        with self._mutex:
            taken = self._pending, self._pieces
            self._pending, self._pieces = [], []
            return taken

    def _put_back(self, pending: list[Entry], pieces: list[Insert]) -> None:
        with self._mutex:
            self._pending[:0] = pending
            self._pieces[:0] = pieces

    def _write(
        self, pending: list[Entry], pieces: list[Insert], more: Sequence[Write], end: End | None
    ) -> Operation[Conflict | None]:  # fmt: skip
        room = max(1, self._claims.store.batch_limit - len(more) - len(pieces) - 1)
        while len(pending) > room:  # many items at once: in parts, each on the same condition
            yield from self._land(pending[:room], (), None)
            pending = pending[room:]
        return (yield from self._land(pending, (*pieces, *more), end))

    def _land(self, pending: list[Entry], more: Sequence[Write], end: End | None) -> Operation[Conflict | None]:
        store, at = self._claims.store, self.hold.held.at
        while True:
            fence = self.hold.held.fence
            ours = end(fence) if end is not None else Check(at, fence=fence)
            written = yield store.write(ours, *[entry_write(at.space, entry) for entry in pending], *more)
            self.hear(written.now)
            if isinstance(written, Written):
                self._remember(pending, written)
                return None
            if isinstance(written, Conflict) and any(write.at == written.at for write in more):
                return written
            if (yield from self._has_landed(pending)):
                return None

    def _remember(self, landed: list[Entry], written: Written) -> None:
        for entry in landed:
            self.entries[entry.name] = structs.replace(entry, version=written.version, at=written.now)

    def _has_landed(self, pending: list[Entry]) -> Operation[bool]:
        """After a refusal: whether it is there all the same. No longer ours: what we know becomes evidence."""
        found = yield from self._claims.store.read(self.hold.held.at)
        held = self.hold.held
        if found.record is not None and found.record.fence == held.fence:
            return (yield from self._are_there(pending))
        if is_beckoned(found.record, held):
            self.hold.held = structs.replace(held, fence=found.record.fence)
            self.beckoned = True
            return False
        yield from self._testify(pending)
        self.hold.lost = LostHold(found.record.state, "") if found.record else LostHold("", "")
        raise claim_lost(self.hold, self.hold.lost, DURING)

    def _are_there(self, pending: list[Entry]) -> Operation[bool]:
        """A batch lands as a whole, so any one of its entries tells. Their versions are learnt on the way."""
        landed = False
        for index, entry in enumerate(pending):
            write = entry_write(self.hold.held.at.space, entry)
            record = (yield from self._claims.store.read(write.at)).record
            landed = record is not None and (record.body, record.state) == (write.body, write.state)
            pending[index] = structs.replace(entry, version=record.version if record else "")
            self.entries[entry.name] = pending[index]
        return landed

    def _testify(self, pending: list[Entry]) -> Operation[None]:
        held = self.hold.held
        for entry in pending:
            if entry.state in (DONE, FAILED):
                note = entry.note
                found = Evidence(held.owner, held.fence, note.result, note.spill, note.fault, entry.name)
                yield from self._claims.store.write(evidence_write(held.at.space, found))
