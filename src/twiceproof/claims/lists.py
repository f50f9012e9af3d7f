"""Lists records page by page, the newest first, with cursors that lead both ways; counts up to a limit.

No page reads more than `MOST_READ` records with any filter: a list of a large ledger must not stop the store. A page
that found too few in them has a cursor to continue.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence

from msgspec import Struct

from ..errors import BadWrite, Misuse
from ..operations import Operation
from ..records import RECORD_KINDS, Page, Record
from ..stores.base import MOST_LOOKED_AT, Store
from .states import is_expired

__all__ = ["MOST_READ", "CappedCount", "ListPlace", "Listed", "Meant", "count_up_to", "list_records"]


Meant = Callable[[Record], bool]
ListPlace = tuple[str, str | None]  # a kind of records, and a state; None: any
MOST_READ = MOST_LOOKED_AT  # records for one page
FASTER, SCAN = 4, 1_000  # growth of the next scan if few of the records matched, and its limit


class CappedCount(Struct, frozen=True):
    """A count that stops: nothing counts a whole table."""

    count: int
    more: bool = False

    def __str__(self) -> str:
        return f"{self.count:,}{'+' if self.more else ''}"


def count_up_to(store: Store, kind: str, state: str | None = None, *, most: int = 1_000) -> Operation[CappedCount]:
    """Count records of a kind, of all tenants."""
    page: Page = yield from store.scan(kind, state=state, limit=most)
    return CappedCount(len(page.records), page.after is not None)


class Listed(Struct, frozen=True):
    """Part of a list. `after` continues it; None means that this was the last part.

    `before` leads back to what is newer; None on the first part. `newer` lists, from any part, what has come since.
    """

    records: Sequence[Record]
    after: str | None
    now: float
    before: str | None = None
    newer: str | None = None


class ListCursor(Struct, frozen=True):
    """Where a list continues: the kind and state of the scan, the record, and the direction."""

    place: ListPlace
    after: str | None = None
    back: bool = False

    def text(self) -> str:
        kind, state = self.place
        plain = f"{kind}.{'*' if state is None else state}{'<' if self.back else ':'}{self.after or ''}"
        return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str, places: Sequence[ListPlace]) -> ListCursor:
        try:
            padded = text + "=" * (-len(text) % 4)
            plain = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raise _no_cursor() from None
        sign = min((plain.find(sign) for sign in ":<" if sign in plain), default=-1)
        kind, _, state = plain[:sign].partition(".")
        place = (kind, None if state == "*" else state)
        if sign < 0 or place not in places:
            raise _no_cursor()
        return cls(place, plain[sign + 1 :] or None, plain[sign] == "<")


def _no_cursor() -> Misuse:
    return Misuse("--after is not a cursor of this list; take it from the answer to the same command.")


def list_records(
    store: Store,
    places: Sequence[ListPlace],
    meant: Meant,
    *,
    limit: int,
    after: str | None = None,
    prefix: str = "",
    by_key: bool = False,
    most_read: int | None = None,
) -> Operation[Listed]:
    """Return records that pass the filter `meant`, place after place, in each the newest first where the store has
    that order. Expired claims and runs are left out, swept or not.

    Args:
        store: The store.
        places: The kinds and states to list, in their order.
        meant: Which of the records.
        limit: How many at most.
        after: A cursor of the same list.
        prefix: How the spaces of all that is meant begin: `tenant/`, or `tenant/flow/`, which has an index for runs.
        by_key: In the order of spaces instead, so that what begins with `prefix` is found among any number of others.
        most_read: How many records may be read, where several lists are shown together. Default: `MOST_READ`.
    """
    by_age = store.newest_first and not by_key
    reader = _ListReader(store, places, meant, limit, prefix, by_age=by_age, most_read=most_read or MOST_READ)
    try:
        return (yield from reader.read(ListCursor.read(after, places) if after else ListCursor(places[0])))
    except BadWrite:
        if after is None:  # it is the prefix: no record can have such a name
            raise
        raise _no_cursor() from None


class _ListReader:
    """One page. Collects records with their cursors, until there are enough or too many were read."""

    def __init__(
        self,
        store: Store,
        places: Sequence[ListPlace],
        meant: Meant,
        limit: int,
        prefix: str,
        *,
        by_age: bool,
        most_read: int,
    ) -> None:
        self._by_age, self._most_read = by_age, most_read
        self._store, self._places, self._meant, self._limit, self._prefix = store, places, meant, limit, prefix
        self._found: list[tuple[Record, ListCursor]] = []
        self._looked = 0
        self._size = limit
        self._whole_pages = store.batch_limit == 1  # such stores give no cursors of single records
        self._now = 0.0

    def read(self, start: ListCursor) -> Operation[Listed]:
        at: ListCursor | None = start
        while (
            at is not None and len(self._found) < self._limit and (self._looked < self._most_read or self._whole_pages)
        ):
            wanted = self._limit - len(self._found)
            page = yield from self._page(at, wanted)
            self._now = page.now
            at = self._take(at, page, wanted)
        return self._listed(start, at)

    def _page(self, at: ListCursor, wanted: int) -> Operation[Page]:
        size = max(wanted, min(self._size, SCAN))
        if self._whole_pages:
            return (yield from self._whole_page(at, wanted, size))
        size = min(size, self._most_read - self._looked)
        kind, state = at.place
        family = self._prefix.count("/") == 2 and self._prefix[-1] == "/" and RECORD_KINDS[kind].by_family
        prefix = self._prefix if self._prefix and (not self._by_age or family) else None
        page: Page = yield from self._store.scan(
            kind, state=state, after=at.after, limit=size, newest=not at.back if self._by_age else None, prefix=prefix
        )
        # A short page by prefix that goes on looked at as many as it may.
        stopped = prefix is not None and page.after is not None and len(page.records) < size
        self._looked += self._most_read if stopped else len(page.records)
        return page

    def _whole_page(self, at: ListCursor, wanted: int, size: int) -> Operation[Page]:
        """Return a page that ends with the last record wanted, because only the end of a page has a cursor.

        A cursor may have the record's address in it: that of a record left out may show another tenant's key.
        """
        kind, state = at.place
        while True:
            page: Page = yield from self._store.scan(kind, state=state, after=at.after, limit=size)
            those = [nth for nth, record in enumerate(page.records, 1) if self._fits(record, page.now)]
            if len(those) < wanted or those[wanted - 1] == len(page.records):
                return page
            size = those[wanted - 1]

    def _fits(self, record: Record, now: float) -> bool:
        return not is_expired(record, now) and self._meant(record)

    def _take(self, at: ListCursor, page: Page, wanted: int) -> ListCursor | None:
        """Take the matching records; return where to continue."""
        cursors = page.cursors or [page.after or ""] * len(page.records)
        those = [
            (record, ListCursor(at.place, cursor, at.back))
            for record, cursor in zip(page.records, cursors, strict=True)
            if self._fits(record, page.now)
        ]
        self._size = max(1, self._size * FASTER if len(those) < len(page.records) else self._size)
        self._found += those[:wanted]
        if len(those) > wanted or (len(those) == wanted and those[-1][0] is not page.records[-1]):
            return those[wanted - 1][1]
        if page.after is not None:
            return ListCursor(at.place, page.after, at.back)
        following = self._places.index(at.place) + (-1 if at.back else 1)
        return ListCursor(self._places[following], None, at.back) if 0 <= following < len(self._places) else None

    def _listed(self, start: ListCursor, end: ListCursor | None) -> Listed:
        """Return a part; one that was read backwards is reversed, and `end` is where newer records begin."""
        found = self._found[::-1] if start.back else self._found
        first, last = (found[0][1], found[-1][1]) if found else (start, start)
        newer = ListCursor(first.place, first.after, back=True) if first.after else None
        before: ListCursor | None
        after: ListCursor | None
        if start.back:
            before, after = end, ListCursor(last.place, last.after)
        else:
            before, after = None if start == ListCursor(self._places[0]) else newer, end
        if not self._by_age:
            before = newer = None
        texts = [cursor.text() if cursor else None for cursor in (after, before, newer)]
        return Listed([record for record, _ in found], texts[0], self._now, texts[1], texts[2])
