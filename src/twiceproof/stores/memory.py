"""The memory store: the model that every other store is compared with. Lives and dies with the process."""

from __future__ import annotations

import itertools
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
from .base import Finding, StorePromises, after_id, after_place, cursor_of_place, fits

__all__ = ["MemoryEngine"]


class MemoryEngine:
    """A dictionary and a lock."""

    promises = StorePromises("no", "no", "the process's", "0", "0", "itself: it is the model")
    batch_limit = 100
    group_limit = 500
    reads_first = True
    best_effort = False
    newest_first = True
    one_per_space = False
    links_spaces = True
    instant = True

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._records: dict[Address, Record] = {}
        self._places: dict[Address, int] = {}  # in the order of insertion
        self._inserted = itertools.count(1)
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
            del self._places[write.at]
        elif isinstance(write, Insert | Replace):
            old = self._records.get(write.at)
            if old is None:
                self._places[write.at] = next(self._inserted)
            self._records[write.at] = put(write, old, self._number, nonce, now)

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        with self._mutex:
            now = self._clock.now()
            return [Found(self._records.get(at), now) for at in addresses]

    def scan(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Page:
        with self._mutex:
            now = self._clock.now()
            chosen = [one for one in self._matching(kind, space, state) if one.at.space.startswith(prefix or "")]
            if newest is not None:
                return self._by_age(chosen, newest, after, limit, now)
        if prefix is not None:
            met = after_place(after, prefix)
            chosen = [one for one in chosen if (one.at.space, kind, one.at.key) > met]
            after = None
        chosen.sort(key=_place)
        rest = [record for record in chosen if after is None or _cursor(record) > after]
        page = rest[:limit]
        cursors = [_cursor(one) if prefix is None else cursor_of_place(one.at.space, kind, one.at.key) for one in page]
        return Page(page, cursors[-1] if len(rest) > limit else None, now, cursors if space is None else ())

    def _by_age(self, chosen: list[Record], newest: bool, after: str | None, limit: int, now: float) -> Page:
        met = after_id(after, newest=newest)
        placed = sorted(((self._places[record.at], record) for record in chosen), key=lambda one: one[0])
        rest = [one for one in placed if (one[0] < met if newest else one[0] > met)]
        page = (rest[::-1] if newest else rest)[:limit]
        cursors = [str(place) for place, _ in page]
        return Page([record for _, record in page], cursors[-1] if len(rest) > limit else None, now, cursors)

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
