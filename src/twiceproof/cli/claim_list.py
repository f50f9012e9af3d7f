"""Claims as a list: by state, operation and tenant."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..claims.claim import CLAIM, DONE, FAILED, HELD, REVIEW
from ..claims.listing import list_records
from ..drive import Operation
from ..stores.base import Store
from .claim_shape import ClaimShape, short_shape

__all__ = ["EVERY_STATE", "OPEN_STATES", "ClaimPage", "list_claims"]

OPEN_STATES = (REVIEW, HELD, FAILED)  # what a person may have to do something about comes first
EVERY_STATE = (*OPEN_STATES, DONE)


class ClaimPage(Struct, frozen=True):
    """Part of a list. `after` continues it; None means that this was the last part."""

    claims: Sequence[ClaimShape]
    after: str | None


def list_claims(
    store: Store, states: Sequence[str], prefix: str, *, limit: int, after: str | None = None
) -> Operation[ClaimPage]:
    """Claims whose space begins with `prefix`, one state after the other."""
    listed = yield from list_records(
        store, [(CLAIM, state) for state in states], lambda record: record.at.space.startswith(prefix), limit=limit,
        after=after,
    )  # fmt: skip
    return ClaimPage([short_shape(record, listed.now) for record in listed.records], listed.after)
