"""Blocked duplicates, counted in memory as they are answered. Bounded; what others do with the counts is theirs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar

from msgspec import Struct

from ..clock import Clock, system_clock
from ..forks import at_fork

__all__ = ["OTHERS", "Blocked", "Duplicates", "source_var"]

OTHERS = ""  # stands for the keys beyond the bound: counted together
MOST = 1_000  # keys per hour and process that are told apart
HOUR = 3_600.0

# Through which door a call came in: "stripe". A door sets it, and whatever the call blocks is counted under it.
source_var: ContextVar[str] = ContextVar("twiceproof_source", default="")


class Blocked(Struct, frozen=True, array_like=True):
    """How often repeats of one key were blocked in an hour. Times are exact to the few seconds between two tellings."""

    source: str
    operation: str
    key: str
    count: int
    first_at: float
    last_at: float


Page = tuple[str, int]  # a tenant and an hour
Row = tuple[str, str, str, str]  # tenant, source, operation and key


class Duplicates:
    """`blocked` is all that a door calls. `arm` is called when there is something to tell.

    A count belongs to the moment at which it is taken, seconds later: asking the clock each time would cost as much as
    the counting.
    """

    def __init__(self, *, clock: Clock = system_clock, arm: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self.arm = arm
        self._reset()
        at_fork(self, in_child=Duplicates._reset)

    def _reset(self) -> None:
        """In a forked child: what was counted so far is the parent's to tell."""
        self._mutex = threading.Lock()
        self._fresh: dict[Row, int] = {}
        self._pages: dict[Page, dict[Row, Blocked]] = {}
        self._untold: set[Page] = set()

    def blocked(self, operation: str, key: str, source: str | None = None, *, tenant: str = "default") -> None:
        """A repeat was answered without doing the work."""
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
        """What has changed since it was last taken: whole pages, counted from the hour's beginning."""
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
        """They could not be told: told again later, with what has been added since."""
        kept = self._pages.setdefault(page, {})
        for row in rows:
            kept.setdefault((page[0], row.source, row.operation, row.key), row)
        self._untold.add(page)
