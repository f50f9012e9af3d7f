"""A run that follows another: it begins when that one has ended, however long it sleeps or waits meanwhile."""

from __future__ import annotations

from ...claims.claim import HELD, QUEUED, WAITING, Claim, run_address, space_of_run
from ...claims.states import is_expired
from ...drive import Operation
from ...stores.base import Store
from ..work import work_of

__all__ = ["LOOK_AGAIN", "is_under_way", "must_wait"]

LOOK_AGAIN = 2.0  # seconds


def must_wait(store: Store, claim: Claim) -> Operation[bool]:
    """Not what has begun: then the one before had ended, and if that is tried again, this does not stand still."""
    before = work_of(claim).follows
    return bool(before) and claim.attempt == 0 and (yield from is_under_way(store, before))


def is_under_way(store: Store, run: str) -> Operation[bool]:
    """One in review is not: nobody knows when a person will come."""
    found = yield from store.read(run_address(space_of_run(run)))
    record = found.record
    return record is not None and not is_expired(record, found.now) and record.state in (QUEUED, HELD, WAITING)
