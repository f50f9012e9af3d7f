"""Lists claims page by page; evidence of late holders."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw, Struct

from ..errors import BadWrite, Misuse
from ..operations import Operation
from ..records import Address, Insert, Page, Record, record_kind
from ..stores.base import Store, scan_all
from .claim import NO_RESULT, Fault, Spill, body_of
from .states import EXPIRE, is_expired

__all__ = ["Evidence", "Listed", "Meant", "Place", "evidence_of", "evidence_write", "list_records", "read_evidence"]


EVIDENCE_KIND = record_kind("evidence", beside_run=True, expires=True)
KEEP = 365 * 86_400.0


class Evidence(Struct, frozen=True, omit_defaults=True):
    """What a holder reported after it had lost its claim."""

    owner: str
    fence: int
    result: Raw = NO_RESULT
    spill: Spill | None = None
    fault: Fault | None = None
    step: str = ""  # which step of a run; "": the whole work
    seen_at: float = 0.0


def evidence_write(space: str, evidence: Evidence) -> Insert:
    """Return the write of a piece of evidence. Its key is the fence, so that a report sent twice is stored once."""
    at = Address(space, EVIDENCE_KIND, f"{evidence.fence}:{evidence.step}" if evidence.step else str(evidence.fence))
    return Insert(at, body_of(evidence), queue=EXPIRE, due_in=KEEP)


def evidence_of(store: Store, space: str) -> Operation[list[Evidence]]:
    """Return all evidence of a space in the order of arrival. By its key, fence 10 would come before fence 9."""
    pieces = [read_evidence(record) for record in (yield from scan_all(store, EVIDENCE_KIND, space=space))]
    return sorted(pieces, key=lambda piece: (piece.seen_at, piece.fence))


def read_evidence(record: Record) -> Evidence:
    evidence = msgspec.json.decode(record.body, type=Evidence)
    return msgspec.structs.replace(evidence, seen_at=record.created_at)


Meant = Callable[[Record], bool]
SCAN = 1_000  # records looked at in one go, at most: with a filter, most of them may be of other tenants
FASTER = 4  # times as many in the next go, where those looked at were not meant
MOST = 10_000  # that a store hands over at a time


class Listed(Struct, frozen=True):
    """Part of a list. `after` continues it; None means that this was the last part."""

    records: Sequence[Record]
    after: str | None
    now: float


Place = tuple[str, str]  # a kind of records, and a state


class Cursor(Struct, frozen=True):
    """Where a list continues: in the scan of which kind and state, and after which record."""

    place: Place
    after: str | None = None


def list_records(
    store: Store, places: Sequence[Place], meant: Meant, *, limit: int, after: str | None = None
) -> Operation[Listed]:
    """Return claims or runs that pass the filter `meant`. Expired ones are left out, swept or not.

    Pages grow while most records are filtered out.
    """
    found: list[Record] = []
    now, size = 0.0, limit
    at: Cursor | None = _read_cursor(after, places) if after else Cursor(places[0])
    while at is not None and len(found) < limit:
        try:
            page = yield from _scan(store, at, meant, limit - len(found), size)
        except BadWrite:  # our own requests are valid: it is the cursor
            raise _no_cursor() from None
        now = page.now
        those = [record for record in page.records if _is_meant(record, meant, now)]
        found += those
        at = _next(at, page, places)
        size = max(limit - len(found), size * FASTER if len(those) < len(page.records) else size)
    return Listed(found, _write_cursor(at) if at else None, now)


def _scan(store: Store, at: Cursor, meant: Meant, wanted: int, size: int) -> Operation[Page]:
    """Return a page of about `size` that ends with the last record wanted, because only the end of a page has a cursor.

    Some stores put the record's address into a cursor: that of a record left out may show another tenant's key.
    """
    kind, state = at.place
    limit = min(max(wanted, min(size, SCAN)), MOST)
    while True:
        page = yield from store.scan(kind, state=state, after=at.after, limit=limit)
        those = [nth for nth, record in enumerate(page.records, 1) if _is_meant(record, meant, page.now)]
        if len(those) < wanted or those[wanted - 1] == len(page.records):
            return page
        limit = those[wanted - 1]


def _is_meant(record: Record, meant: Meant, now: float) -> bool:
    return not is_expired(record, now) and meant(record)


def _next(at: Cursor, page: Page, places: Sequence[Place]) -> Cursor | None:
    if page.after is not None:
        return Cursor(at.place, page.after)
    rest = places[places.index(at.place) + 1 :]
    return Cursor(rest[0]) if rest else None


def _write_cursor(at: Cursor) -> str:
    return base64.urlsafe_b64encode(f"{'.'.join(at.place)}:{at.after or ''}".encode()).decode().rstrip("=")


def _read_cursor(text: str, places: Sequence[Place]) -> Cursor:
    try:
        padded = text + "=" * (-len(text) % 4)
        name, sign, after = base64.b64decode(padded, altchars=b"-_", validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        name, sign, after = "", "", ""
    kind, _, state = name.partition(".")
    if not sign or (kind, state) not in places:
        raise _no_cursor()
    return Cursor((kind, state), after or None)


def _no_cursor() -> Misuse:
    return Misuse("--after is not a cursor of this list; take it from the answer to the same command.")
