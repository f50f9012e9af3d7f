"""Counts blocked duplicates in memory, flushes the counts to the store, and reads them back.

Each process writes its own record per hour, whole each time, so that a repeated write counts nothing twice. A process
that exits without closing its app flushes at exit; what was counted in the last seconds before a crash is lost.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct

from ..clock import Clock, Ids, system_clock
from ..errors import StoreError
from ..operations import Operation, block
from ..records import Address, Insert, Record, Replace, Written, record_kind
from ..stores.base import Store
from ..threads import DelayedCall, at_fork, run_within
from .claim import body_of, space_of
from .states import EXPIRE

__all__ = [
    "KIND",
    "OPERATION",
    "OTHERS",
    "Blocked",
    "DuplicateCounter",
    "Duplicates",
    "RecentlyBlocked",
    "blocked_of",
    "most_blocked",
    "recently_blocked",
    "source_var",
]


OTHERS = ""  # stands for the keys beyond the bound: counted together
MOST = 1_000  # keys per hour and process that are told apart
HOUR = 3_600.0
RECENT = 10  # times of each key, hour and process that are remembered

# The source a call came in through ("stripe"). Set by webhooks; duplicates blocked in the call are counted under it.
source_var: ContextVar[str] = ContextVar("twiceproof_source", default="")


class Blocked(Struct, frozen=True, array_like=True):
    """How often duplicates of one key were blocked in an hour, and when the latest of them came. `first_at` and
    `last_at` are exact to the seconds between two flushes."""

    source: str
    operation: str
    key: str
    count: int
    first_at: float
    last_at: float
    times: tuple[float, ...] = ()  # of the latest, in order; records of older releases have none


class _Arrivals:
    """What came of one key since the last flush."""

    __slots__ = ("count", "times")

    def __init__(self) -> None:
        self.count = 0
        self.times: deque[float] = deque(maxlen=RECENT)

    def add(self, now: float) -> None:
        self.count += 1
        self.times.append(round(now, 3))


Page = tuple[str, int]  # a tenant and an hour
Row = tuple[str, str, str, str]  # tenant, source, operation and key


class Duplicates:
    """Counts in memory, and remembers when the latest came. `arm` is called when there is something to flush."""

    def __init__(self, *, clock: Clock = system_clock, arm: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self.arm = arm
        self._reset()
        at_fork(self, in_child=Duplicates._reset)

    def _reset(self) -> None:
        """In a forked child: what was counted so far is flushed by the parent."""
        self._mutex = threading.Lock()
        self._fresh: dict[Row, _Arrivals] = {}
        self._pages: dict[Page, dict[Row, Blocked]] = {}
        self._untold: set[Page] = set()

    def blocked(self, operation: str, key: str, source: str | None = None, *, tenant: str = "default") -> None:
        """Count a duplicate that was answered without doing the work."""
        row = tenant, source_var.get() if source is None else source, operation, key
        fresh, now = self._fresh, self._clock.now()
        with self._mutex:
            known = fresh.get(row)
            if known is None:
                idle = not fresh
                row = row if len(fresh) < MOST else (*row[:3], OTHERS)
                known = fresh.setdefault(row, _Arrivals())
                if idle:
                    self.arm()
            known.add(now)

    def take(self) -> dict[Page, list[Blocked]]:
        """Return the pages that changed since the last call, each with all counts of its hour."""
        now = self._clock.now()
        hour = int(now // HOUR)
        with self._mutex:
            fresh = dict(self._fresh)
            self._fresh.clear()
        for row, came in fresh.items():
            self._add(hour, row, came, now)
        told, self._untold = self._untold, set()
        taken = {page: list(self._pages[page].values()) for page in told}
        self._pages = {page: rows for page, rows in self._pages.items() if page[1] >= hour}
        return taken

    def _add(self, hour: int, row: Row, came: _Arrivals, now: float) -> None:
        page = row[0], hour
        rows = self._pages.setdefault(page, {})
        if row not in rows and len(rows) >= MOST:
            row = (*row[:3], OTHERS)
        known = rows.get(row) or Blocked(*row[1:], 0, now, now)
        times = () if row[3] == OTHERS else _latest(known.times, came.times)
        rows[row] = Blocked(*row[1:], known.count + came.count, known.first_at, now, times)
        self._untold.add(page)

    def give_back(self, page: Page, rows: list[Blocked]) -> None:
        """Put back counts that could not be written: they are flushed later, with what has been added since."""
        kept = self._pages.setdefault(page, {})
        for row in rows:
            kept.setdefault((page[0], row.source, row.operation, row.key), row)
        self._untold.add(page)


log = logging.getLogger("twiceproof")

KIND = record_kind("duplicates", expires=True)
OPERATION = "@duplicates"
FLUSH_EVERY = 5.0
KEEP = 30 * 86_400.0
PAGE = 500
GRACE = 1.0  # for the last counts when we are stopped: a commit under way is the store's to wait for

OnBlocked = Callable[[str, Sequence[Blocked]], None]


class DuplicateCounter:
    """Writes one process' counts to the store. Each callback in `told` gets every page that was written."""

    def __init__(self, store: Store, duplicates: Duplicates, *, ids: Ids, every: float = FLUSH_EVERY) -> None:
        self._store = store
        self._duplicates = duplicates
        self._ids = ids
        self._every = every
        self._stopped = False
        self._given_up = False
        self.told: list[OnBlocked] = []
        duplicates.arm = self._arm
        self._reset()
        _tallies.add(self)
        at_fork(self, in_child=_reset)

    def _reset(self) -> None:
        """A forked child has records of its own."""
        self._name = ""  # the key of all pages of this process: no page is written twice under different keys
        self._pages: dict[str, str] = {}  # the versions of the latest, by space
        self._mutex = threading.Lock()  # one flush at a time, or an older page could be written over a newer one
        self._delayed: DelayedCall | None = None
        self._is_late = False  # whether something was counted when no delayed flush could be started any more

    def _arm(self) -> None:
        if self._stopped:
            return
        if self._delayed is not None:
            self._delayed.cancel()
        self._delayed = DelayedCall(self._every, self.flush, "twiceproof-tally")
        try:
            self._delayed.start()
        except RuntimeError:  # no thread can be started: flushed at the end; the duplicate itself must be answered
            self._delayed, self._is_late = None, True

    def flush(self) -> None:
        """Write what has changed to the store; if that fails, it is tried again later."""
        with self._mutex:
            self._is_late = False
            written = [page for page in self._duplicates.take().items() if self._try_write(*page)]
        for (tenant, _), rows in written:  # outside of the lock: a callback may be slow
            self._tell(tenant, rows)

    def _try_write(self, page: tuple[str, int], rows: list[Blocked]) -> bool:
        try:
            block(self._write(*page, rows))
        except StoreError as error:
            if error.data.get("closed"):  # for good: trying again would only log warnings
                self._stopped = True
            if not self._given_up:
                log.warning("blocked duplicates could not be counted yet: %s", error)
            self._duplicates.give_back(page, rows)
            self._arm()
            return False
        return True

    def _write(self, tenant: str, hour: int, rows: Sequence[Blocked]) -> Operation[None]:
        space, body = space_of(tenant, OPERATION, str(hour)), body_of(rows)
        self._name = self._name or self._ids()
        at, version = Address(space, KIND, self._name), self._pages.get(space, "")
        while True:
            written = yield from self._store.write(_page_write(at, body, version))
            if isinstance(written, Written):
                self._pages = {name: known for name, known in self._pages.items() if _hour(name) >= hour - 1}
                self._pages[space] = written.version
                return
            version = (
                "" if written.found is None else written.found.version
            )  # an earlier write of ours whose answer was lost

    def _tell(self, tenant: str, rows: Sequence[Blocked]) -> None:
        for told in self.told:
            try:
                told(tenant, rows)
            except Exception as error:  # noqa: BLE001 - a callback must not stop the counting
                log.warning("a listener to blocked duplicates failed: %s", error)

    def stop(self) -> None:
        self._stopped = True
        if self._delayed is not None:
            self._delayed.cancel()
        if not run_within(GRACE, self.flush, "twiceproof-tally"):
            self._give_up()

    def run_now(self) -> None:
        """Flush at once: the process is ending without `stop`."""
        self._stopped = True
        if self._delayed is not None:
            self._delayed.run_now()

    def wait(self, seconds: float) -> None:
        if self._is_late:  # Python 3.12 starts no thread once the main one has ended
            self.flush()  # on this thread: the store answered a moment ago
        if self._delayed is None or self._given_up:
            return
        self._delayed.join(seconds)
        if self._delayed.is_alive():
            self._give_up()

    def _give_up(self) -> None:
        self._given_up = True
        log.warning("the last blocked duplicates may not be counted: the store does not answer")


_tallies: weakref.WeakSet[DuplicateCounter] = (
    weakref.WeakSet()
)  # in a forked child, each has a delayed flush of its own only


@atexit.register
def _at_exit() -> None:
    """Flush all counters in bounded time: an unavailable store must not keep a process from ending."""
    tallies = list(_tallies)
    for tally in tallies:
        tally.run_now()
    until = system_clock.monotonic() + GRACE
    for tally in tallies:
        tally.wait(max(0.0, until - system_clock.monotonic()))


def _page_write(at: Address, body: str, version: str) -> Insert | Replace:
    if not version:
        return Insert(at, body, queue=EXPIRE, due_in=KEEP)
    return Replace(at, body, version=version, queue=EXPIRE, due_in=KEEP)


def _hour(space: str) -> int:
    return int(space.rsplit("/", 1)[1])


def _reset(tally: DuplicateCounter) -> None:
    """Reset in a forked child. Children of `multiprocessing` end without atexit, and get a finalizer instead."""
    tally._reset()
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(tally, lambda _: util.Finalize(None, _at_exit, exitpriority=0))


# -- reading -------------------------------------------------------------------------------------

_decode = msgspec.json.Decoder(list[Blocked]).decode
MOST_ROWS = 50_000  # counts that a page looks through, about
ROW_BYTES = 100
LARGE = 20  # records of a thousand counts each, in one page
MOST_TIMES = 20  # of one key, over all hours and processes


def most_blocked(
    store: Store, tenant: str, *, operation: str = "", source: str | None = None, since: float = 0.0, limit: int = 100
) -> Operation[list[Blocked]]:
    """Return the keys with most blocked duplicates, over all processes. `since` cuts between hours."""
    sums: dict[tuple[str, str, str], Blocked] = {}
    after: str | None = None
    while True:
        page = yield from store.scan(KIND, after=after, limit=PAGE)
        for record in page.records:
            if record.at.space.startswith(f"{tenant}/{OPERATION}/"):
                _add(sums, record, operation, source, since)
        after = page.after
        if after is None:
            return _ranked(sums)[:limit]


class RecentlyBlocked(Struct, frozen=True):
    """`more`: there may be others, which were not looked through. `rows`: the keys that came most often first.
    `by_hour`: how many were blocked in each hour, by the hour's number since 1970."""

    rows: list[Blocked]
    more: bool
    by_hour: Mapping[int, int] = {}


def recently_blocked(
    store: Store,
    tenant: str,
    now: float,
    *,
    operation: str = "",
    source: str | None = None,
    since: float = 0.0,
    limit: int = 100,
) -> Operation[RecentlyBlocked]:
    """Return the same as `most_blocked`, from a bounded number of records: those of the latest hours."""
    sums: dict[tuple[str, str, str], Blocked] = {}
    by_hour: Counter[int] = Counter()
    pages, more = yield from _pages(store, tenant, max(since, now - KEEP), now)
    for record in pages:
        by_hour[_hour(record.at.space)] += _add(sums, record, operation, source, since)
    return RecentlyBlocked(_ranked(sums)[:limit], more, dict(by_hour))


def blocked_of(
    store: Store, tenant: str, operation: str, keys: Collection[str], began: float, now: float
) -> Operation[RecentlyBlocked]:
    """Return what was blocked of some keys since they began, by entry point: in the first hours, and in the latest."""
    first, more_first = yield from _pages(store, tenant, began, min(now, began + 10 * HOUR), MOST_ROWS // 2)
    latest, more = yield from _pages(store, tenant, began, now, MOST_ROWS // 2)
    sums: dict[tuple[str, str, str], Blocked] = {}
    for record in {one.at: one for one in (*first, *latest)}.values():
        for row in _decode(record.body):
            if row.key in keys and row.operation == operation:
                sums[row.source, row.operation, row.key] = _sum(sums, row)
    return RecentlyBlocked(_ranked(sums), more or more_first)


def _pages(
    store: Store, tenant: str, begin: float, end: float, most: int = MOST_ROWS
) -> Operation[tuple[list[Record], bool]]:
    """Return the records of these hours, the latest first: until they have `most` bytes for each row that may be read.
    Whether there may be others."""
    found: list[Record] = []
    room = most * ROW_BYTES
    for block_of_hours in _blocks(int(begin // HOUR), int(end // HOUR)):
        prefix, after = space_of(tenant, OPERATION, block_of_hours), None
        while True:
            page = yield from store.scan(KIND, prefix=prefix, after=after, limit=LARGE)
            found += page.records
            room -= sum(len(record.body) for record in page.records)
            if room <= 0:
                return found, True
            after = page.after
            if after is None:
                break
    return found, False


def _blocks(first: int, last: int) -> Iterator[str]:
    """Yield beginnings of hours' numbers that cover these hours, the latest first: by tens, and then by hundreds."""
    border = max(first, last // 100 * 100)
    yield from map(str, range(last // 10, border // 10 - 1, -1))
    yield from map(str, range((border - 1) // 100, first // 100 - 1, -1) if border > first else ())


def _ranked(sums: Mapping[tuple[str, str, str], Blocked]) -> list[Blocked]:
    return sorted(sums.values(), key=lambda row: (-row.count, row.operation, row.key))


def _add(
    sums: dict[tuple[str, str, str], Blocked], record: Record, operation: str, source: str | None, since: float
) -> int:
    """Add the rows of one record that are meant, and return how many repeats they are."""
    added = 0
    for row in _decode(record.body):
        if row.last_at < since or (operation and row.operation != operation) or source not in (None, row.source):
            continue
        name = row.source, row.operation, row.key
        sums[name] = _sum(sums, row)
        added += row.count
    return added


def _sum(sums: Mapping[tuple[str, str, str], Blocked], row: Blocked) -> Blocked:
    known = sums.get((row.source, row.operation, row.key))
    if known is None:
        return row
    first, last = min(known.first_at, row.first_at), max(known.last_at, row.last_at)
    times = _latest(known.times, row.times, most=MOST_TIMES)
    return Blocked(row.source, row.operation, row.key, known.count + row.count, first, last, times)


def _latest(*times: Iterable[float], most: int = RECENT) -> tuple[float, ...]:
    return tuple(sorted(chain.from_iterable(times))[-most:])
