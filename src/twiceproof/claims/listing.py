"""Finds claims in a ledger, page by page: one state after the other, those that are meant."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence

from msgspec import Struct

from ..drive import Operation
from ..errors import BadWrite, Misuse
from ..records import Page, Record
from ..stores.base import Store
from .claim import KIND
from .states import is_expired

__all__ = ["Listed", "Meant", "list_records"]

Meant = Callable[[Record], bool]
SCAN = 1_000  # records looked at in one go, at most: with a filter, most of them may be somebody else's
FASTER = 4  # times as many in the next go, where those looked at were not meant
MOST = 10_000  # that a store hands over at a time


class Listed(Struct, frozen=True):
    """Part of a list. `after` continues it; None means that this was the last part."""

    records: Sequence[Record]
    after: str | None
    now: float


class Cursor(Struct, frozen=True):
    """Where a list goes on: in which state's scan, and after what."""

    state: str
    after: str | None = None


def list_records(
    store: Store, states: Sequence[str], meant: Meant, *, limit: int, after: str | None = None
) -> Operation[Listed]:
    """Claims that are meant, whatever they are. What has expired is as good as forgotten, swept or not.

    Of those that are meant no more are read than are shown; of others, some times as many as there are among them.
    """
    found: list[Record] = []
    now, size = 0.0, limit
    at: Cursor | None = _read_cursor(after, states) if after else Cursor(states[0])
    while at is not None and len(found) < limit:
        try:
            page = yield from _scan(store, at, meant, limit - len(found), size)
        except BadWrite:  # whatever we ask for ourselves, it takes: it is the cursor
            raise _no_cursor() from None
        now = page.now
        those = [record for record in page.records if _is_meant(record, meant, now)]
        found += those
        at = _next(at, page, states)
        size = max(limit - len(found), size * FASTER if len(those) < len(page.records) else size)
    return Listed(found, _write_cursor(at) if at else None, now)


def _scan(store: Store, at: Cursor, meant: Meant, wanted: int, size: int) -> Operation[Page]:
    """A page of about `size`. It ends with the last record wanted: only a page's end has a cursor to go on from, and
    some stores write their cursors with the record's address. One that is not meant may be another tenant's.
    """
    limit = min(max(wanted, min(size, SCAN)), MOST)
    while True:
        page = yield from store.scan(KIND, state=at.state, after=at.after, limit=limit)
        places = [place for place, record in enumerate(page.records) if _is_meant(record, meant, page.now)]
        if len(places) < wanted or places[wanted - 1] + 1 == len(page.records):
            return page
        limit = places[wanted - 1] + 1


def _is_meant(record: Record, meant: Meant, now: float) -> bool:
    return not is_expired(record, now) and meant(record)


def _next(at: Cursor, page: Page, states: Sequence[str]) -> Cursor | None:
    if page.after is not None:
        return Cursor(at.state, page.after)
    rest = states[states.index(at.state) + 1 :]
    return Cursor(rest[0]) if rest else None


def _write_cursor(at: Cursor) -> str:
    return base64.urlsafe_b64encode(f"{at.state}:{at.after or ''}".encode()).decode().rstrip("=")


def _read_cursor(text: str, states: Sequence[str]) -> Cursor:
    try:
        padded = text + "=" * (-len(text) % 4)
        state, sign, after = base64.b64decode(padded, altchars=b"-_", validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        state, sign, after = "", "", ""
    if not sign or state not in states:
        raise _no_cursor()
    return Cursor(state, after or None)


def _no_cursor() -> Misuse:
    return Misuse("--after is not a cursor of this list; take it from the answer to the same command.")
