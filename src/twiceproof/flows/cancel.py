"""Cancelling a run: nothing new is begun, what was done is undone."""

from __future__ import annotations

from msgspec import structs

from ..claims.claim import DONE, FAILED, HELD, QUEUED, REVIEW, Fault, body_of, claim_of
from ..claims.claims import FOR_EVER
from ..claims.states import Lifetime, finish_times, is_lapsed
from ..drive import Operation
from ..errors import Misuse
from ..records import Address, Record, Replace, Written
from ..stores.base import Store
from .undo import CANCELLED
from .waiters import beckoned, wake_waiters
from .work import queue_of, with_work, work_of

__all__ = ["cancel"]


def cancel(store: Store, at: Address, by: str, life: Lifetime = FOR_EVER) -> Operation[str]:
    """Says the state the run is in now. One that somebody is at is beckoned: it stops before its next step.

    `life` is that of its flow; where that is not known, what is cancelled is kept for ever.
    """
    while True:
        found = yield from store.read(at)
        record = _cancellable(found.record)
        if record.state in (DONE, FAILED) or work_of(claim_of(record)).undoing:
            return record.state
        live = record.state == HELD and not is_lapsed(record, found.now)
        write = _beckon(record, by, found.now) if live else _stop(record, by, life)
        written = yield from store.write(write)
        if isinstance(written, Written):
            if write.state == FAILED:
                yield from wake_waiters(store, work_of(claim_of(record)))
            return write.state


def _cancellable(record: Record | None) -> Record:
    if record is None:
        raise Misuse("There is no such run; list them with: twiceproof runs list")
    if record.state == REVIEW:
        raise Misuse("This run waits for a person; settle it instead, with undo or abandon: twiceproof review settle")
    return record


def _beckon(record: Record, by: str, now: float) -> Replace:
    return beckoned(record, with_work(claim_of(record), undoing=CANCELLED, by=by), now)


def _stop(record: Record, by: str, life: Lifetime) -> Replace:
    """Nobody is at it. One that never began just ends; any other is undone by whoever takes it."""
    claim = claim_of(record)
    adrift = record.state == HELD or work_of(claim).adrift  # what its holder was at is not known to be undone
    claim = with_work(claim, undoing=CANCELLED, by=by, adrift=adrift)
    if claim.attempt == 0:
        body = body_of(structs.replace(claim, fault=Fault("Cancelled", f"cancelled by {by}")))
        queue, due_in, _ = finish_times(FAILED, life)
        return Replace(record.at, body, FAILED, version=record.version, draw=True, queue=queue, due_in=due_in)
    queue = queue_of(claim.tenant, claim.operation, work_of(claim).version)
    return Replace(record.at, body_of(claim), QUEUED, version=record.version, draw=True, queue=queue, due_in=0.0)
