"""Trying a run again by a person's word: what failed is tried anew, what is done stays done."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.claim import FAILED, QUEUED, claim_of
from ...drive import Operation
from ...records import Address, Check, Record, Written
from ...stores.base import Store
from ..entry import FAILED as STEP_FAILED
from ..entry import Entry, entry_write, tried_anew
from .review import going_on, queued, refuse_retry
from .runs import entries_in, read_run, require_run

__all__ = ["retry_run"]


def retry_run(store: Store, at: Address, where: Sequence[str] = ()) -> Operation[str]:
    """A run that failed, or that stopped because its flow had changed, goes back to the queue."""
    while True:
        found = yield from read_run(store, at)
        record = require_run(found)
        entries = yield from entries_in(store, at.space)
        refuse_retry(record, entries, where)
        if not (yield from _reopen(store, record, entries)):
            continue
        if isinstance((yield from store.write(queued(record, going_on(claim_of(record))))), Written):
            return QUEUED


def _reopen(store: Store, record: Record, entries: Sequence[Entry]) -> Operation[bool]:
    """Before the run is queued: a crash in between leaves a failed run, whose failures are tried again anyway."""
    failed = [tried_anew(entry) for entry in entries if entry.state == STEP_FAILED and record.state == FAILED]
    size = max(1, store.batch_limit - 1)
    for start in range(0, len(failed), size):
        writes = [entry_write(record.at.space, entry) for entry in failed[start : start + size]]
        written = yield from store.write(Check(record.at, version=record.version), *writes)
        if not isinstance(written, Written):
            return False
    return True
