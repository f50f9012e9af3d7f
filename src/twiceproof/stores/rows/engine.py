"""RowEngine: records in a table of rows, for any service; each technology provides a `SortedTable`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from ...clock import Clock, system_clock
from ...errors import BadWrite
from ...records import Address, Batch, Due, Found, Outcome, Page, Record, Remove
from ..base import MOST_LOOKED_AT, Disconnected, Finding, SpaceBusy
from .commits import KnownRows, RowCommitter, live
from .due import DueRows
from .row import LaneCount, kind_prefix, lane_of, place_of_record, space_prefix, stamp_of
from .server_clock import LEASE_MARGIN, Numbers, ServerClock
from .table import ABSENT, Change, LaneRow, Place, SortedTable, Throttled

__all__ = ["META", "UNRELIABLE", "RowEngine", "clock_finding", "lanes_finding", "reading", "settings_written"]

META = (0, "meta")  # the place of the ledger's settings
UNRELIABLE = 0.8  # seconds between queries of waiting callers: there are no notifications from other processes
PURGE_AFTER = 32  # removals in a lane
SKEW = 1.0
# A cursor comes from outside, and its key goes into queries: nothing but what keys are made of may be in it.
CURSOR = re.compile(r"([0-9]{1,4}):([0-9a-z]+)")
MOST_ROWS = 1_000  # rows that are read at once where there are many tombstones


class _Part(Struct):
    """The records found so far of one kind in one space."""

    lane: int
    after: str
    before: str
    records: list[Record]

    def add(self, rows: Sequence[LaneRow], size: int, limit: int) -> bool:
        """Add rows. Return whether there may be more to read."""
        self.records += [record for row in rows if (record := live(stamp_of(row.data))) is not None]
        if rows:
            self.after = rows[-1].place[1]
        return len(rows) == size and len(self.records) < limit


class RowEngine:
    """What all stores of rows have in common. A subclass opens its table, calls `_begin`, and examines."""

    batch_limit = 33  # a write takes up to three changes: the record, its old due time and its new one
    group_limit = 64
    reads_first = False  # a read costs a request, like a write
    best_effort = False
    newest_first = False
    one_per_space = True
    remote = True
    lease_margin = LEASE_MARGIN
    body_limit: int
    most_bytes = 0  # that one transaction takes

    def _begin(self, table: SortedTable, lanes: int, clock: Clock = system_clock) -> None:
        self.table = table
        self.lanes = lanes
        self._known = KnownRows()
        self._numbers = Numbers()
        self._commits = RowCommitter(table, lanes, self._known, self._numbers, clock)
        self._commits.most_bytes = self.most_bytes
        self._due = DueRows(table, lanes, self._known, self._numbers, clock)
        self._removed: dict[int, int] = {}  # since the last purge, by lane

    @property
    def clock(self) -> ServerClock:
        return self.table.clock

    # -- commits -----------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        answers = self._commits.commit(batches)
        self._purge_behind(batches)
        return answers

    def _purge_behind(self, batches: Sequence[Batch]) -> None:
        """Each removal leaves a tombstone: for each new one, up to two old ones are removed."""
        for write in [one for batch in batches for one in batch.writes if isinstance(one, Remove)]:
            lane = lane_of(write.at.space, self.lanes)
            self._removed[lane] = self._removed.get(lane, 0) + 1
        for lane, count in list(self._removed.items()):
            if count >= PURGE_AFTER:
                del self._removed[lane]
                self._due.try_to_purge(lane, 2 * count)

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        with reading():
            return self._due.hand_out(kind, queues, limit, hide)

    def listen(self, on_change: object) -> float:
        return UNRELIABLE

    # -- reads -------------------------------------------------------------------------------------

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        places = [place_of_record(at, self.lanes) for at in addresses]
        wanted = list(dict.fromkeys(places))
        with reading():
            rows = dict(zip(wanted, self.table.read(wanted), strict=True))
        now = self.clock.now()
        return [Found(self._record(rows[place]), now) for place in places]

    def _record(self, row: LaneRow | None) -> Record | None:
        if row is None:
            return None
        stamp = stamp_of(row.data)
        self._known.put(row, stamp)
        return live(stamp)

    def scan(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Page:
        """Scan lane by lane. States and prefixes of spaces are searched among all records of the kind, since there is
        no index of them, nor of age, so `newest` is ignored. With a prefix the page ends after a number of rows.
        """
        records: list[Record] = []
        cursors: list[str] = []
        last = ""
        for looked, row in enumerate(self._rows(kind, space, after, limit + 1)):
            if prefix is not None and looked == MOST_LOOKED_AT:
                return Page(records, last, self.clock.now(), cursors)
            record, last = live(stamp_of(row.data)), _cursor(row.place)
            fits = record is not None and state in (None, record.state) and record.at.space.startswith(prefix or "")
            if record is None or not fits:
                continue
            if len(records) == limit:
                return Page(records, cursors[-1], self.clock.now(), cursors)
            records.append(record)
            cursors.append(last)
        return Page(records, None, self.clock.now(), cursors)

    def _rows(self, kind: str, space: str | None, after: str | None, size: int) -> Iterator[LaneRow]:
        """Return all rows of a kind after a cursor, or those of one space."""
        prefix = kind_prefix(kind) if space is None else space_prefix(kind, space)
        first, start = _position(after, self.lanes, prefix)
        lanes = range(first, self.lanes) if space is None else [lane_of(space, self.lanes)]
        for lane in lanes:
            last = start if lane == first or space is not None else prefix
            while last:
                with reading():
                    rows = self.table.range(lane, last, prefix + "~", size)
                yield from rows
                last = rows[-1].place[1] if len(rows) == size else ""

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
        """Continue reading after tombstones, because fewer records than `limit` mean that there are no more."""
        left = [
            _Part(lane_of(space, self.lanes), prefix, prefix + "~", [])
            for space in spaces
            for prefix in [space_prefix(kind, space) for kind in kinds]
        ]
        parts, size = list(left), limit
        while left:
            with reading():
                pages = self.table.ranges([(part.lane, part.after, part.before, size) for part in left])
            left = [part for part, rows in zip(left, pages, strict=True) if part.add(rows, size, limit)]
            size = min(4 * size, MOST_ROWS)
        return [record for part in parts for record in part.records[:limit]]

    # -- life --------------------------------------------------------------------------------------

    def examine(self) -> Sequence[Finding]:
        raise NotImplementedError

    def close(self) -> None:
        self.table.close()

    def abandon(self) -> None:
        self._known.reset()
        self._numbers.abandon()
        self.table.abandon()


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Read. A throttled read is retried with growing pauses, as after a broken connection."""
    try:
        yield
    except Throttled as error:
        raise Disconnected(error, sent=False) from error


def settings_written(table: SortedTable, lanes: int) -> LaneRow | None:
    """Write a new ledger's settings, and return what is there: of several processes that do so at once, one is first.
    If nothing is there, raise what kept the service from writing it.
    """
    (answer,) = table.change_each([[Change(META, ABSENT, LaneCount.text(lanes), 1)]])
    (found,) = table.read([META])
    if found is None and isinstance(answer, Exception):
        raise answer
    return found


def _cursor(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


def _position(after: str | None, lanes: int, prefix: str) -> tuple[int, str]:
    if after is None:
        return 0, prefix
    found = CURSOR.fullmatch(after)
    if found is None or int(found[1]) >= lanes or not found[2].startswith(prefix):
        raise BadWrite("This cursor is not of this scan; begin it again without one.")
    return int(found[1]), found[2]


def lanes_finding(asked: int, lanes: int) -> Finding:
    """`asked`: the number in the URL, which counts only when the table is created."""
    if asked == lanes:
        return Finding("ok", "lanes", str(lanes))
    return Finding(
        "ok",
        "lanes",
        f"{lanes}, as the store was created, not {asked}",
        "The number cannot be changed; leave lanes= out of the URL.",
    )


def clock_finding(clock: ServerClock) -> Finding:
    """Leases are stamped and judged by the service's time, as far as its answers tell it."""
    uncertain = clock.uncertainty
    if uncertain is None:
        return Finding(
            "warn",
            "clock",
            "the service names no time: leases are judged by this machine's clock, and lapse early where it is ahead",
            "Keep the clocks of all machines that use the ledger in step (NTP), and use leases of a minute or more.",
        )
    told = f"the service's, known to {uncertain:.2f} s"
    ahead = clock.ahead()
    if abs(ahead) > uncertain + SKEW:
        return Finding("warn", "clock", f"{told}; this machine's differs by {ahead:+.1f} s", "Run NTP on this machine.")
    return Finding("ok", "clock", told)
