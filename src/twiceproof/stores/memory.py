"""The memory store: the model that every other store is compared with. Lives and dies with the process."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence

from msgspec import structs

from ..clock import Clock, system_clock
from ..records import (
    Address,
    Batch,
    Conflict,
    Due,
    Found,
    Insert,
    Outcome,
    Page,
    Record,
    Remove,
    Replace,
    Write,
    Written,
)
from .base import Finding, fits

__all__ = ["MemoryEngine"]


class MemoryEngine:
    """A dictionary and a lock."""

    batch_limit = 100
    group_limit = 500
    reads_first = True
    best_effort = False
    one_per_space = False
    instant = True

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._records: dict[Address, Record] = {}
        self._number = 0

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome]:
        with self._mutex:
            now = self._clock.now()
            return [self._land(batch, now) for batch in batches]

    def _land(self, batch: Batch, now: float) -> Outcome:
        for write in batch.writes:
            found = self._records.get(write.at)
            if not fits(write, found):
                return Conflict(write.at, found, now)
        self._number += 1
        for write in batch.writes:
            self._apply(write, batch.nonce, now)
        return Written(str(self._number), self._number, now)

    def _apply(self, write: Write, nonce: str, now: float) -> None:
        if isinstance(write, Remove):
            del self._records[write.at]
        elif isinstance(write, Insert | Replace):
            old = self._records.get(write.at)
            self._records[write.at] = put(write, old, self._number, nonce, now)

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        with self._mutex:
            now = self._clock.now()
            return [Found(self._records.get(at), now) for at in addresses]

    def scan(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> Page:
        with self._mutex:
            now = self._clock.now()
            chosen = sorted(self._matching(kind, space, state), key=_place)
        rest = [record for record in chosen if after is None or _cursor(record) > after]
        page = rest[:limit]
        return Page(page, _cursor(page[-1]) if len(rest) > limit else None, now)

    def _matching(self, kind: str, space: str | None, state: str | None) -> Iterator[Record]:
        for at, record in self._records.items():
            if at.kind == kind and space in (None, at.space) and state in (None, record.state):
                yield record

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        with self._mutex:
            now = self._clock.now()
            asked = frozenset(queues)
            waiting = [
                (r.due_at, r) for r in self._matching(kind, None, None) if r.due_at is not None and r.queue in asked
            ]
            ripe = sorted([one for one in waiting if one[0] <= now], key=lambda one: one[0])
            later = [due_at for due_at, _ in waiting if due_at > now] + [due_at for due_at, _ in ripe[limit:]]
            hidden = [self._hide(record, now + hide) for _, record in ripe[:limit]]
            later += [now + hide] * bool(hidden)
            return Due(hidden, max(0.0, min(later) - now) if later else None, now)

    def _hide(self, record: Record, until: float) -> Record:
        self._number += 1
        hidden = structs.replace(record, due_at=until, version=str(self._number))
        self._records[record.at] = hidden
        return hidden

    def examine(self) -> Sequence[Finding]:
        return [Finding("warn", "durability", "memory only", "Use sqlite:///file.db to survive the process.")]

    def close(self) -> None:
        return None

    def abandon(self) -> None:
        self._mutex = threading.Lock()


def _place(record: Record) -> tuple[str, str]:
    return record.at.space, record.at.key


def _cursor(record: Record) -> str:
    return "\0".join(_place(record))


def put(write: Insert | Replace, old: Record | None, number: int, nonce: str, now: float) -> Record:
    """The record a write leaves behind, stamped with the store's time."""
    kept = old.body if old else ""
    return Record(
        at=write.at,
        body=kept if write.body is None else write.body,
        state=write.state,
        version=str(number),
        fence=number if write.draw else (old.fence if old else 0),
        nonce=nonce,
        created_at=old.created_at if old else now,
        updated_at=now,
        lease_until=None if write.lease is None else now + write.lease,
        queue=write.queue,
        due_at=None if write.due_in is None else now + write.due_in,
    )
