"""Finds claims in a ledger, page by page: by state, operation and tenant."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from msgspec import Struct

from ..claims.claim import DONE, FAILED, HELD, KIND, REVIEW
from ..claims.states import is_expired
from ..drive import Operation
from ..errors import Misuse
from ..records import Page, Record
from ..stores.base import Store
from .claim_shape import ClaimShape, short_shape

__all__ = ["EVERY_STATE", "OPEN_STATES", "ClaimPage", "list_claims"]

OPEN_STATES = (REVIEW, HELD, FAILED)  # what a person may have to do something about comes first
EVERY_STATE = (*OPEN_STATES, DONE)
SCAN = 1_000  # records looked at in one go: with a filter, most of them may be somebody else's


class ClaimPage(Struct, frozen=True):
    """Part of a list. `after` continues it; None means that this was the last part."""

    claims: Sequence[ClaimShape]
    after: str | None


class Cursor(Struct, frozen=True):
    """Where a list goes on: in which state's scan, and after what."""

    state: str
    after: str | None = None


def list_claims(
    store: Store, states: Sequence[str], prefix: str, *, limit: int, after: str | None = None
) -> Operation[ClaimPage]:
    """Claims whose space begins with `prefix`, one state after the other."""
    found: list[ClaimShape] = []
    at: Cursor | None = _read_cursor(after, states) if after else Cursor(states[0])
    while at is not None and len(found) < limit:
        page = yield from _scan(store, at, prefix, limit - len(found))
        found += [short_shape(record, page.now) for record in page.records if _is_meant(record, prefix, page.now)]
        at = _next(at, page, states)
    return ClaimPage(found, _write_cursor(at) if at else None)


def _scan(store: Store, at: Cursor, prefix: str, wanted: int) -> Operation[Page]:
    """A page that ends with the last record wanted: only a page's end has a cursor to go on from."""
    page = yield from store.scan(KIND, state=at.state, after=at.after, limit=max(wanted, SCAN))
    meant = [place for place, record in enumerate(page.records) if _is_meant(record, prefix, page.now)]
    if len(meant) <= wanted:
        return page
    return (yield from store.scan(KIND, state=at.state, after=at.after, limit=meant[wanted - 1] + 1))


def _is_meant(record: Record, prefix: str, now: float) -> bool:
    """What has expired is as good as forgotten, whether it was swept already or not."""
    return record.at.space.startswith(prefix) and not is_expired(record, now)


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
        raise Misuse("--after is not a cursor of this list; take it from the answer to the same command.")
    return Cursor(state, after or None)
