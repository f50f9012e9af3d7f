"""Parks what was claimed over HTTP and never ended: a tool that forgot to say so leaves it held for ever otherwise.

Nobody is told of a lease that is over until the key is asked for again, which may be never. An hour later it waits for
review, where a person sees it. Its fence stays: a word of its holder that comes still later counts, as before.
"""

from __future__ import annotations

import logging

from msgspec import structs

from ...claims.claim import CLAIM, HELD, REVIEW, body_of, claim_of
from ...drive import Operation
from ...errors import CannotOpen
from ...records import Record, Replace, Written
from ...stores.base import Store
from .token import OWNER

__all__ = ["OLD", "park_unfinished"]

log = logging.getLogger("twiceproof")

OLD = 3_600.0  # seconds after the end of its lease
PAGE = 1_000
MOST = 5_000  # parked in one go: the next is a few minutes away


def park_unfinished(store: Store) -> Operation[int]:
    """How many were parked."""
    parked, after = 0, None
    while parked < MOST:
        page = yield from store.scan(CLAIM, state=HELD, after=after, limit=PAGE)
        for record in page.records:
            if _is_old(record, page.now):
                parked += isinstance((yield from store.write(_parked(record))), Written)
        after = page.after
        if after is None:
            break
    if parked:
        log.warning(
            "%d claims were taken over HTTP and never ended, and wait for review now; look: twiceproof review "
            "list", parked,
        )  # fmt: skip
    return parked


def _is_old(record: Record, now: float) -> bool:
    """By what its record says, before its body is read: a holder here renews."""
    if record.lease_until is None or record.lease_until + OLD > now:
        return False
    try:
        claim = claim_of(record)
    except CannotOpen:
        return False
    return claim.owner.startswith(OWNER)


def _parked(record: Record) -> Replace:
    reason = "its holder took it over HTTP and never said what came of it; whether its work was done is unknown"
    body = body_of(structs.replace(claim_of(record), reason=reason))
    return Replace(record.at, body, REVIEW, version=record.version)
