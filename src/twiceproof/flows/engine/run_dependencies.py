"""Runs that wait for other runs: registering, waking, and interrupting a holder."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from ...claims.claim import (
    DONE,
    FAILED,
    HELD,
    QUEUED,
    REVIEW,
    WAITING,
    Claim,
    body_of,
    claim_of,
    run_address,
    space_of_run,
)
from ...claims.states import is_expired
from ...operations import Operation
from ...records import Address, Found, Record, Replace, Written
from ...stores.base import Store
from .run_states import INNER_REVIEW, WAITS_FOR_RUN, RunState, queue_of, with_work, work_of

__all__ = [
    "LOOK_AGAIN",
    "interrupt",
    "is_under_way",
    "must_wait",
    "register_waiter",
    "to_review",
    "waits_in_a_circle",
    "wake",
    "wake_waiters",
]


LOOK_AGAIN = 2.0  # seconds


def must_wait(store: Store, claim: Claim, run: str) -> Operation[bool]:
    """Whether the run that `run` follows has not ended; then it is woken at that end. A run that has begun does not
    wait: the one before had ended then, and if that is retried, this one still goes on."""
    before = work_of(claim).follows
    if not before or claim.attempt or not (yield from is_under_way(store, before)):
        return False
    return (yield from _awaits_end(store, before, run))


def is_under_way(store: Store, run: str) -> Operation[bool]:
    """Whether a run has not ended. One in review does not count: it may stay there for any time."""
    found = yield from store.read(run_address(space_of_run(run)))
    record = found.record
    return record is not None and not is_expired(record, found.now) and record.state in (QUEUED, HELD, WAITING)


MOST_WAITERS = 100  # waiters beyond these check on the run themselves, every few minutes


def register_waiter(store: Store, run: str, waiter: str, over: Collection[str]) -> Operation[bool]:
    """Register `waiter` with a run, to be woken at its end. False: the run is in one of the states `over`.

    A run that is not in this store (it may be another app's) and a claim that is no run cannot wake it: the waiter
    checks on those itself.
    """
    while True:
        found = yield from store.read(_address(run))
        if found.record is None:
            return True
        if found.record.state in over:
            return False
        claim = claim_of(found.record)
        if not claim.work or _is_known(work_of(claim), waiter):
            return True
        claim = with_work(claim, waiters=(*work_of(claim).waiters, waiter))
        if isinstance((yield from store.write(_registered(found, found.record, claim))), Written):
            return True


def _awaits_end(store: Store, run: str, waiter: str) -> Operation[bool]:
    """Register a run with the one that it follows, if that has begun. False: that one has ended meanwhile.

    One that has not begun is left alone: a worker may be about to take it. The waiter looks again by itself.
    """
    found = yield from store.read(_address(run))
    if found.record is not None and found.record.state == QUEUED:
        return True
    return (yield from register_waiter(store, run, waiter, (DONE, FAILED, REVIEW)))


def waits_in_a_circle(store: Store, runs: Collection[str], waiter: str) -> Operation[bool]:
    """Whether one of these waits for `waiter`, directly or through others: then none of them can ever end."""
    ahead, seen = list(runs), set(runs)
    while ahead and len(seen) < MOST_WAITERS:
        record = (yield from store.read(_address(ahead.pop()))).record
        if record is None or record.state != WAITING:
            continue
        awaited = work_of(claim_of(record)).awaits
        if waiter in awaited:
            return True
        ahead += [run for run in awaited if run not in seen]
        seen.update(awaited)
    return False


def to_review(store: Store, run: str, reason: str) -> Operation[bool]:
    """Move a waiting run to review. False: it was woken meanwhile."""
    record = (yield from store.read(_address(run))).record
    if record is None or record.state != WAITING:
        return False
    body = body_of(structs.replace(claim_of(record), reason=reason))
    write = Replace(record.at, body, REVIEW, version=record.version, draw=True)
    return isinstance((yield from store.write(write)), Written)


def wake_waiters(store: Store, work: RunState) -> Operation[None]:
    """Wake the runs that wait for a run which has ended or is in review."""
    for run in dict.fromkeys((work.parent, *work.waiters)):
        if run:
            yield from wake(store, run)


def wake(store: Store, run: str) -> Operation[None]:
    """Make a run that waits for another due; also if it is in review because the other one is."""
    while True:
        record = (yield from store.read(_address(run))).record
        again = _woken(record) if record is not None else None
        if again is None or isinstance((yield from store.write(again)), Written):
            return


def interrupt(record: Record, claim: Claim, now: float) -> Replace:
    """Change the fence and keep the holder: its next write is refused, and it reads the claim again."""
    left = (record.lease_until or now) - now
    lease = max(0.001, left)
    return Replace(
        record.at,
        body_of(claim),
        HELD,
        version=record.version,
        draw=True,
        lease=lease,
        queue=record.queue,
        due_in=lease,
    )


def _is_known(work: RunState, waiter: str) -> bool:
    return waiter == work.parent or waiter in work.waiters or len(work.waiters) >= MOST_WAITERS


def _registered(found: Found, record: Record, claim: Claim) -> Replace:
    """A holder writes the claim as it knows it, so it is interrupted: it would overwrite the new waiter."""
    if record.state == HELD:
        return interrupt(record, claim, found.now)
    due_in = None if record.due_at is None else max(0.0, record.due_at - found.now)
    return Replace(record.at, body_of(claim), record.state, version=record.version, queue=record.queue, due_in=due_in)


def _address(run: str) -> Address:
    return run_address(space_of_run(run))


def _woken(record: Record) -> Replace | None:
    claim = claim_of(record)
    if record.state == WAITING and claim.reason.startswith(WAITS_FOR_RUN):
        return Replace(record.at, None, WAITING, version=record.version, queue=record.queue, due_in=0.0)
    if record.state == QUEUED and work_of(claim).follows and claim.attempt == 0:
        return Replace(record.at, None, QUEUED, version=record.version, queue=record.queue, due_in=0.0)
    if record.state == REVIEW and INNER_REVIEW in claim.reason:
        queue = queue_of(claim.tenant, claim.operation, work_of(claim).version)
        body = body_of(structs.replace(claim, reason=""))
        return Replace(record.at, body, QUEUED, version=record.version, draw=True, queue=queue, due_in=0.0)
    return None
