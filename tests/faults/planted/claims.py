"""Bugs of claims: a wrong decision about a record, or a lost write."""

from __future__ import annotations

import time
from typing import Any

from msgspec import Raw, structs

from twiceproof.claims import manager as claims
from twiceproof.claims import retention, states
from twiceproof.claims.claim import Done
from twiceproof.claims.held_claim import Heartbeat
from twiceproof.records import Record, Replace


def _decide_otherwise(change: Any) -> None:
    """Let `change` decide about takes first. The default of `Claims.take` is bound when it is defined."""
    decide = states.decide

    def otherwise(ask: Any, record: Record | None, now: float) -> Any:
        return change(decide, ask, record, now)

    claims.ClaimManager.take.__defaults__ = (otherwise, None)  # type: ignore[attr-defined]


def unknown_is_tried_again() -> None:
    """A holder that disappeared is assumed to have done nothing."""
    _decide_otherwise(lambda decide, ask, record, now: decide(structs.replace(ask, repeat="safe"), record, now))


def payload_not_compared() -> None:
    """Another payload under the same key is answered with the first one's result."""
    _decide_otherwise(lambda decide, ask, record, now: decide(structs.replace(ask, fingerprint=""), record, now))


def done_is_done_again() -> None:
    """A done claim is treated as a retryable failure: each duplicate does the work once more."""

    def change(decide: Any, ask: Any, record: Record | None, now: float) -> Any:
        if record is not None and record.state == "done":
            return states._take_over(ask, record, 1)
        return decide(ask, record, now)

    _decide_otherwise(change)


def time_of_the_worker() -> None:
    """Leases are judged by the worker's own clock, not the store's."""
    _decide_otherwise(lambda decide, ask, record, now: decide(ask, record, _own_time() if record else now))


def _own_time() -> float:
    return time.time() + 3600.0  # an hour ahead, as F8 has them


def replays_are_rewritten() -> None:
    """A duplicate's answer is not the first one's, byte for byte."""
    settled = states._settled

    def rewritten(record: Any, claim: Any, now: float) -> Any:
        outcome = settled(record, claim, now)
        if isinstance(outcome, Done) and outcome.result:
            return structs.replace(outcome, result=Raw(bytes(outcome.result).replace(b"a", b"A")))
        return outcome

    states._settled = rewritten


def heart_does_not_beat() -> None:
    """A claim lapses under work that takes longer than its lease."""
    Heartbeat._due = lambda self: []  # type: ignore[method-assign]


def sweep_takes_what_is_held() -> None:
    """A key that was taken again after the sweep had looked is forgotten all the same."""

    sweep_several = retention._sweep_several

    def looking_again(store: Any, records: Any, now: float, counts: Any) -> Any:
        seen = []
        for record in records:
            found = (yield from store.read(record.at)).record or record
            seen.append(structs.replace(record, version=found.version))
        yield from sweep_several(store, seen, now, counts)

    retention._sweep_several = looking_again


def forgotten_early() -> None:
    """A key may be forgotten at half its time: a late duplicate is new again."""
    finish_times = states.finish_times

    def halved(state: str, life: Any) -> Any:
        queue, due_in, tombstone = finish_times(state, life)
        return queue, due_in / 2 if due_in else due_in, tombstone

    claims.finish_times = halved  # type: ignore[attr-defined]


def end_draws_no_fence() -> None:
    """A heartbeat that arrives after the claim's last write undoes that write."""
    complete = claims.ClaimManager.complete

    def weak(self: Any, *args: Any, **kwargs: Any) -> Any:
        store, write = self.store, self.store.write
        store.write = lambda *writes: write(*[_undrawn(one) for one in writes])
        try:
            return (yield from complete(self, *args, **kwargs))
        finally:
            del store.write

    claims.ClaimManager.complete = weak  # type: ignore[method-assign]


def _undrawn(write: Any) -> Any:
    return structs.replace(write, draw=False) if isinstance(write, Replace) and write.state == "done" else write
