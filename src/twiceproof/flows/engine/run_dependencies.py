"""Runs that wait for other runs."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from ...claims.claim import HELD, QUEUED, REVIEW, WAITING, Claim, body_of, claim_of, run_address, space_of_run
from ...claims.states import is_expired
from ...operations import Operation
from ...records import Address, Found, Record, Replace, Written
from ...stores.base import Store
from .exits import INNER_REVIEW, WAITS_FOR_RUN
from .run_states import RunState, queue_of, with_work, work_of

__all__ = [
    "LOOK_AGAIN",
    "awaits",
    "beckoned",
    "is_under_way",
    "must_wait",
    "to_review",
    "waits_in_a_circle",
    "wake",
    "wake_waiters",
]


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


MOST_WAITERS = 100  # those beyond look after it themselves, every few minutes


def awaits(store: Store, run: str, waiter: str, over: Collection[str]) -> Operation[bool]:
    """Leave word with a run that `waiter` is to be woken at its end. False: it is in one of the states `over`.

    Of a run that is not here (it may be another app's, in a store of its own) and of a claim that is no run nobody
    hears: the waiter looks after it itself.
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
        if isinstance((yield from store.write(_with_word(found, found.record, claim))), Written):
            return True


def waits_in_a_circle(store: Store, runs: Collection[str], waiter: str) -> Operation[bool]:
    """Whether one of these lay down for `waiter`, itself or through others: then none of them can ever end."""
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
    """A run that waits is left to a person instead. False: something has woken it meanwhile."""
    record = (yield from store.read(_address(run))).record
    if record is None or record.state != WAITING:
        return False
    body = body_of(structs.replace(claim_of(record), reason=reason))
    write = Replace(record.at, body, REVIEW, version=record.version, draw=True)
    return isinstance((yield from store.write(write)), Written)


def wake_waiters(store: Store, work: RunState) -> Operation[None]:
    """The run of this work has ended, or a person must decide about it."""
    for run in dict.fromkeys((work.parent, *work.waiters)):
        if run:
            yield from wake(store, run)


def wake(store: Store, run: str) -> Operation[None]:
    """A run that waits for another goes on when that one has ended; also if both waited for the same person."""
    while True:
        record = (yield from store.read(_address(run))).record
        again = _woken(record) if record is not None else None
        if again is None or isinstance((yield from store.write(again)), Written):
            return


def beckoned(record: Record, claim: Claim, now: float) -> Replace:
    """A new fence, the same holder: its next write is refused, and it looks why."""
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


def _with_word(found: Found, record: Record, claim: Claim) -> Replace:
    """Its holder writes the claim as it knows it: it has to look, or the word would be written over."""
    if record.state == HELD:
        return beckoned(record, claim, found.now)
    due_in = None if record.due_at is None else max(0.0, record.due_at - found.now)
    return Replace(record.at, body_of(claim), record.state, version=record.version, queue=record.queue, due_in=due_in)


def _address(run: str) -> Address:
    return run_address(space_of_run(run))


def _woken(record: Record) -> Replace | None:
    claim = claim_of(record)
    if record.state == WAITING and claim.reason.startswith(WAITS_FOR_RUN):
        return Replace(record.at, None, WAITING, version=record.version, queue=record.queue, due_in=0.0)
    if record.state == REVIEW and INNER_REVIEW in claim.reason:
        queue = queue_of(claim.tenant, claim.operation, work_of(claim).version)
        body = body_of(structs.replace(claim, reason=""))
        return Replace(record.at, body, QUEUED, version=record.version, draw=True, queue=queue, due_in=0.0)
    return None
