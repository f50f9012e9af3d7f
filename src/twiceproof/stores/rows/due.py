"""Hands out due records, the longest overdue first across all lanes; removes old tombstones."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Collection, Iterator, Sequence

import msgspec
from msgspec import Struct

from ...clock import Clock
from ...errors import StoreError
from ...records import Address, Due, Record
from ..base import Disconnected
from .commits import KnownRows, index_changes
from .row import (
    DueEntry,
    RowStamp,
    due_entry,
    due_prefix,
    grave_of,
    micros,
    pack,
    place_of_record,
    record_of,
    seconds,
    stamp_of,
    time_part,
)
from .server_clock import Numbers
from .table import Answer, Change, Landed, LaneRow, Place, RowsDiffer, SortedTable, Throttled

__all__ = ["DueRows"]

PAGE = 64  # least number of index rows that are read at once
PURGE_EVERY = 60.0  # seconds between searches for old tombstones, one lane at a time
PURGED = 64  # tombstones that one search removes
TOGETHER = 32  # in one transaction


log = logging.getLogger("twiceproof")


class DueLook(Struct):
    """What was found in one part of the index."""

    ripe: list[DueEntry]
    later: int | None  # when the next is due, or an earlier time


class DueRows:
    """The index of due records."""

    def __init__(self, table: SortedTable, lanes: int, known: KnownRows, numbers: Numbers, clock: Clock) -> None:
        self._table = table
        self._lanes = lanes
        self._known = known
        self._numbers = numbers
        self._clock = clock
        self._purged_at = clock.monotonic()
        self._purge_next = 0

    def hand_out(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        asked = queues if isinstance(queues, set | frozenset | dict) else frozenset(queues)
        now = micros(self._table.clock.now())
        looks = self._look(kind, asked, limit, now)
        ripe = [entry for look in looks for entry in look.ripe]
        chosen = heapq.nsmallest(limit, ripe, key=lambda entry: entry.due_at)
        hidden_at = micros(self._table.clock.now())
        records, missed = self._hide(chosen, micros(hide), hidden_at) if chosen else ([], False)
        later = [max(0.0, seconds(look.later - now)) for look in looks if look.later is not None]
        if len(ripe) > len(chosen) or missed:
            later.append(0.0)
        if records:
            later.append(hide)
        self._purge_now_and_then()
        return Due(records, min(later, default=None), seconds(hidden_at))

    # -- looking -----------------------------------------------------------------------------------

    def _look(self, kind: str, asked: Collection[str], limit: int, now: int) -> list[DueLook]:
        prefixes = list(dict.fromkeys(due_prefix(kind, queue) for queue in asked))
        parts = [(lane, prefix) for prefix in prefixes for lane in range(self._lanes)]
        looks = [DueLook([], None) for _ in parts]
        left = {nth: prefix for nth, (_, prefix) in enumerate(parts)}  # and after which key
        size = max(PAGE, min(limit, 1_000) + 1)
        while left:
            pages = self._table.ranges(
                [(parts[nth][0], after, parts[nth][1] + "~", size) for nth, after in left.items()]
            )
            for nth, page in zip(list(left), pages, strict=True):
                if len(page) < size:
                    _add(looks[nth], page, asked, limit, now)
                    del left[nth]
                elif _add(looks[nth], page, asked, limit, now, more=True):
                    del left[nth]
                else:
                    left[nth] = page[-1].place[1]
        return looks

    # -- handing out -------------------------------------------------------------------------------

    def _hide(self, entries: Sequence[DueEntry], hide: int, now: int) -> tuple[list[Record], bool]:
        """Postpone each record, if it is as the index says. Records that another caller got first are left out."""
        places = [place_of_record(_address(entry), self._lanes) for entry in entries]
        rows = self._table.read(places)
        moves = [move for pair in zip(entries, rows, strict=True) if (move := self._move(*pair, now + hide, now))]
        answers = self._table.change_each([changes for _, _, changes in moves])
        handed: list[Record] = []
        for (place, stamp, changes), answer in zip(moves, answers, strict=True):
            self._known.forget(place)
            if isinstance(answer, Landed):
                handed.append(record_of(stamp))
                self._known.put(LaneRow(place, answer.tokens[0], changes[0].data or b""), stamp)
        _raise_if_none(handed, answers)
        return handed, len(handed) < len(entries)

    def _move(
        self, entry: DueEntry, row: LaneRow | None, until: int, now: int
    ) -> tuple[Place, RowStamp, list[Change]] | None:
        if row is None:
            return None
        old = stamp_of(row.data)
        if old.dead or old.due_at != entry.due_at or old.queue != entry.queue:
            return None
        new = msgspec.structs.replace(old, due_at=until, number=self._numbers.draw(now, old.number))
        put = Change(row.place, row.token, pack(new), new.number)
        return row.place, new, [put, *index_changes(row.place[0], old, new)]

    # -- tombstones --------------------------------------------------------------------------------

    def _purge_now_and_then(self) -> None:
        if self._clock.monotonic() - self._purged_at >= PURGE_EVERY:
            self._purged_at = self._clock.monotonic()
            self._purge_next = (self._purge_next + 1) % self._lanes
            self.try_to_purge(self._purge_next)

    def try_to_purge(self, lane: int, most: int = PURGED) -> None:
        """Purge, and only log failures: the caller wanted something else, and has its answer."""
        try:
            self.purge(lane, most)
        except (Disconnected, Throttled):
            return  # they will be found again
        except StoreError as error:
            log.warning("old tombstones were left lying, and are tried again later: %s", error)

    def purge(self, lane: int, most: int = PURGED) -> None:
        """Remove expired tombstones of this lane, many at a time. Those that cannot be removed now are left to the next
        time.
        """
        end = "z" + time_part(micros(self._table.clock.now()))
        graves = self._table.range(lane, "z", end, most)
        places = [(lane, grave_of(grave.data).key) for grave in graves]
        wanted = list(dict.fromkeys(places))  # several entries point to a record that was removed more than once
        rows = dict(zip(wanted, self._table.read(wanted), strict=True)) if wanted else {}
        gone = [list(_removal_of(grave, rows[place])) for grave, place in zip(graves, places, strict=True)]
        parts = [gone[first : first + TOGETHER] for first in range(0, len(gone), TOGETHER)]
        answers = self._table.change_each([[change for one in part for change in one] for part in parts])
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, RowsDiffer):  # one of them was written again meanwhile
                self._table.change_each(part)
        for place in wanted:
            self._known.forget(place)


def _removal_of(grave: LaneRow, row: LaneRow | None) -> Iterator[Change]:
    """Return the changes that remove a tombstone and its index entry, if it is still the same tombstone."""
    yield Change(grave.place, grave.token)
    if row is not None:
        stamp = stamp_of(row.data)
        if stamp.dead and stamp.number == grave_of(grave.data).number:
            yield Change(row.place, row.token)


def _add(
    look: DueLook, page: Sequence[LaneRow], asked: Collection[str], limit: int, now: int, *, more: bool = False
) -> bool:
    """Add the entries of a page of the index. True: this part needs no more reading.

    Due entries of other queues are skipped. A later entry of another queue ends the reading, with an earlier next time
    than necessary, so that the cost depends only on what is due.
    """
    for row in page:
        entry = due_entry(row.data)
        if entry.due_at > now and entry.queue in asked:
            look.later = entry.due_at
            return True
        if entry.queue in asked:
            look.ripe.append(entry)
            if len(look.ripe) > limit:
                return True
    last = due_entry(page[-1].data).due_at if more else 0
    if last > now:
        look.later = last
    return last > now


def _address(entry: DueEntry) -> Address:
    return Address(entry.space, entry.kind, entry.key)


def _raise_if_none(handed: Sequence[Record], answers: Sequence[Answer]) -> None:
    """Raise if nothing was handed out because the service did not answer. If some records were, they are returned."""
    faults = [answer for answer in answers if isinstance(answer, Exception)]
    if handed or not faults:
        return
    first = faults[0]
    if isinstance(first, Throttled):
        raise Disconnected(first, sent=False)
    raise first
