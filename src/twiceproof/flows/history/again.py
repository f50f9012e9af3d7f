"""Trying a run again by a person's word: what failed is tried anew, what is done stays done."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.claim import FAILED, QUEUED, REVIEW, claim_of
from ...drive import Operation
from ...errors import Misuse
from ...records import Address, Check, Record, Written
from ...shell import typed
from ...stores.base import Store
from ..entry import FAILED as STEP_FAILED
from ..entry import UNKNOWN, Entry, entry_write, tried_anew
from ..undo import refuse_cancelled, undoes
from ..work import with_work, work_of
from .review import queued
from .runs import entries_in, require_run

__all__ = ["retry_run"]


def retry_run(store: Store, at: Address, where: Sequence[str] = ()) -> Operation[str]:
    """A run that failed, or that stopped because its flow had changed, goes back to the queue."""
    while True:
        found = yield from store.read(at)
        record = require_run(found)
        entries = yield from entries_in(store, at.space)
        _refuse(record, entries, where)
        if not (yield from _reopen(store, record, entries)):
            continue
        claim = claim_of(record)
        if work_of(claim).undoing:  # a person's, who thought better of it: what was said is kept with the settling
            claim = with_work(claim, undoing="", by="")
        if isinstance((yield from store.write(queued(record, claim))), Written):
            return QUEUED


def _refuse(record: Record, entries: Sequence[Entry], where: Sequence[str]) -> None:
    run = claim_of(record).run
    if record.state not in (FAILED, REVIEW):
        look = typed(*where, "runs", "show", run)
        raise Misuse(f"This run is {record.state}: there is nothing to try again. Look: {look}")
    refuse_cancelled(record, where)
    if undoes({entry.name for entry in entries}):
        raise Misuse(
            "What this run did was undone, or is being undone: it cannot go on. Start it as something new: "
            f"{typed(*where, 'runs', 'fork', run, '--key', 'KEY')}"
        )
    unknown = sorted(entry.name for entry in entries if entry.state == UNKNOWN)
    if record.state == REVIEW and unknown:
        look = typed(*where, "review", "show", run)
        raise Misuse(f"The outcome of {', '.join(unknown)} is unknown; settle it: {look}")


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
