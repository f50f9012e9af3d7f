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
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
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

__all__ = ["KIND", "OPERATION", "OTHERS", "Blocked", "DuplicateCounter", "Duplicates", "most_blocked", "source_var"]


OTHERS = ""  # stands for the keys beyond the bound: counted together
MOST = 1_000  # keys per hour and process that are told apart
HOUR = 3_600.0

# The source a call came in through ("stripe"). Set by webhooks; duplicates blocked in the call are counted under it.
source_var: ContextVar[str] = ContextVar("twiceproof_source", default="")


class Blocked(Struct, frozen=True, array_like=True):
    """How often duplicates of one key were blocked in an hour. Times are exact to the seconds between two flushes."""

    source: str
    operation: str
    key: str
    count: int
    first_at: float
    last_at: float


Page = tuple[str, int]  # a tenant and an hour
Row = tuple[str, str, str, str]  # tenant, source, operation and key


class Duplicates:
    """Counts in memory. `arm` is called when there is something to flush.

    A count gets the time of the flush, seconds later: reading the clock each time would cost as much as the counting.
    """

    def __init__(self, *, clock: Clock = system_clock, arm: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self.arm = arm
        self._reset()
        at_fork(self, in_child=Duplicates._reset)

    def _reset(self) -> None:
        """In a forked child: what was counted so far is flushed by the parent."""
        self._mutex = threading.Lock()
        self._fresh: dict[Row, int] = {}
        self._pages: dict[Page, dict[Row, Blocked]] = {}
        self._untold: set[Page] = set()

    def blocked(self, operation: str, key: str, source: str | None = None, *, tenant: str = "default") -> None:
        """Count a duplicate that was answered without doing the work."""
        row = tenant, source_var.get() if source is None else source, operation, key
        fresh = self._fresh
        with self._mutex:
            count = fresh.get(row)
            if count is None:
                idle = not fresh
                row = row if len(fresh) < MOST else (*row[:3], OTHERS)
                fresh[row] = fresh.get(row, 0) + 1
                if idle:
                    self.arm()
                return
            fresh[row] = count + 1

    def take(self) -> dict[Page, list[Blocked]]:
        """Return the pages that changed since the last call, each with all counts of its hour."""
        now = self._clock.now()
        hour = int(now // HOUR)
        with self._mutex:
            fresh = dict(self._fresh)
            self._fresh.clear()
        for row, count in fresh.items():
            self._add(hour, row, count, now)
        told, self._untold = self._untold, set()
        taken = {page: list(self._pages[page].values()) for page in told}
        self._pages = {page: rows for page, rows in self._pages.items() if page[1] >= hour}
        return taken

    def _add(self, hour: int, row: Row, count: int, now: float) -> None:
        page = row[0], hour
        rows = self._pages.setdefault(page, {})
        if row not in rows and len(rows) >= MOST:
            row = (*row[:3], OTHERS)
        known = rows.get(row)
        rows[row] = Blocked(*row[1:], count + (known.count if known else 0), known.first_at if known else now, now)
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

Told = Callable[[str, Sequence[Blocked]], None]


class DuplicateCounter:
    """Writes one process' counts to the store. Each callback in `told` gets every page that was written."""

    def __init__(self, store: Store, duplicates: Duplicates, *, ids: Ids, every: float = FLUSH_EVERY) -> None:
        self._store = store
        self._duplicates = duplicates
        self._ids = ids
        self._every = every
        self._stopped = False
        self._given_up = False
        self.told: list[Told] = []
        duplicates.arm = self._arm
        self._reset()
        _tallies.add(self)
        at_fork(self, in_child=_reset)

    def _reset(self) -> None:
        """A forked child has records of its own."""
        self._name = ""  # the key of all pages of this process: no page is written twice under different keys
        self._pages: dict[str, str] = {}  # the versions of the latest, by space
        self._mutex = threading.Lock()  # one flush at a time, or an older page could be written over a newer one
        self._errand: DelayedCall | None = None
        self._is_late = False  # whether something was counted when no delayed flush could be started any more

    def _arm(self) -> None:
        if self._stopped:
            return
        if self._errand is not None:
            self._errand.cancel()
        self._errand = DelayedCall(self._every, self.flush, "twiceproof-tally")
        try:
            self._errand.start()
        except RuntimeError:  # no thread can be started: flushed at the end; the duplicate itself must be answered
            self._errand, self._is_late = None, True

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
            if error.data.get("closed"):  # closed for good: trying again would only log warnings
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
        if self._errand is not None:
            self._errand.cancel()
        if not run_within(GRACE, self.flush, "twiceproof-tally"):
            self._give_up()

    def run_now(self) -> None:
        """Flush at once: the process is ending without `stop`."""
        self._stopped = True
        if self._errand is not None:
            self._errand.run_now()

    def wait(self, seconds: float) -> None:
        if self._is_late:  # Python 3.12 starts no thread once the main one has ended
            self.flush()  # on this thread: the store answered a moment ago
        if self._errand is None or self._given_up:
            return
        self._errand.join(seconds)
        if self._errand.is_alive():
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
            return sorted(sums.values(), key=lambda row: (-row.count, row.operation, row.key))[:limit]


def _add(
    sums: dict[tuple[str, str, str], Blocked], record: Record, operation: str, source: str | None, since: float
) -> None:
    for row in _decode(record.body):
        if row.last_at < since or (operation and row.operation != operation) or source not in (None, row.source):
            continue
        name = row.source, row.operation, row.key
        sums[name] = _sum(sums, row)


def _sum(sums: Mapping[tuple[str, str, str], Blocked], row: Blocked) -> Blocked:
    known = sums.get((row.source, row.operation, row.key))
    if known is None:
        return row
    first, last = min(known.first_at, row.first_at), max(known.last_at, row.last_at)
    return Blocked(row.source, row.operation, row.key, known.count + row.count, first, last)
