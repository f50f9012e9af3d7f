"""RestEngine: an engine over a service that has rows with a unique key and an ETag, and no transactions.

A row is a record. The service decides whether a write lands, in the request that writes: a row is created only if its
key is free, and changed or removed only if it has the ETag that was read. So one write lands at a time (`batch_limit =
1`). Fences and versions are the service's own numbers, which only grow; times are its own stamps.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any
from zlib import crc32

from msgspec import Struct, structs

from ..clock import Clock
from ..errors import BadWrite
from ..records import (
    Address,
    Batch,
    Check,
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
from .base import SPACE_BUSY, Disconnected, Finding, SpaceBusy, fits
from .rows.table import closed
from .service_rows import RowRefused, RowService, ServiceRow, address_column, as_text, of_text, row_key, short

__all__ = ["RestEngine"]

RESOLUTION = 1.0  # seconds: the services' times have no fraction
SLACK = 60.0  # seconds by which the column `due` may be wrong
TRIES = 5
MOST_SEEN = 20_000
NO_KEY = "no;such;key"
AT_ONCE = 8


class _Seen(Struct, frozen=True):
    """What this process remembers of a row: enough to change it without reading it first."""

    handle: tuple[str, str]
    version: str
    fence: int


class RestEngine:
    """Records as rows. Several requests are under way at once; each decides about one write."""

    batch_limit = 1
    group_limit = 50
    reads_first = False
    best_effort = False
    newest_first = False
    one_per_space = False
    remote = True
    body_limit = 100_000

    def __init__(self, service: RowService, *, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._skew = 0.0  # how far the service's clock is ahead of ours
        self._reset()

    def abandon(self) -> None:
        self._service.abandon()
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._doubtful: set[str] = set()  # nonces of rows that may have been created without an answer

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._service.close()

    def examine(self) -> Sequence[Finding]:
        raise NotImplementedError

    # -- commits ---------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        """Send each write by itself. Those without an answer are retried."""
        found = self._land_each(batches)
        lost = [answer for answer in found if isinstance(answer, Disconnected)]
        if lost:
            told = [None if isinstance(answer, Disconnected) else answer for answer in found]
            raise Disconnected(lost[0], sent=any(one.sent for one in lost), answers=told)
        self._doubtful.clear()
        return found

    def _land_each(self, batches: Sequence[Batch]) -> list[Outcome | SpaceBusy | Exception]:
        if len(batches) <= 1:
            return [self._land_or_error(batch) for batch in batches]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AT_ONCE, "twiceproof-rows")
        try:
            return list(self._pool.map(self._land_or_error, batches))
        except CancelledError:
            raise closed(sent=True) from None  # others of them were under way

    def _land_or_error(self, batch: Batch) -> Outcome | SpaceBusy | Exception:
        try:
            return self._land(batch.writes[0], batch.nonce)
        except Exception as error:  # noqa: BLE001 - of this batch alone: its neighbours have answers of their own
            return error

    def _land(self, write: Write, nonce: str) -> Outcome | SpaceBusy:
        if isinstance(write, Insert):
            return self._insert(write, nonce)
        if isinstance(write, Check):
            found = self._fetch(write.at)
            fine = fits(write, found.record)
            return Written(f"check {nonce}", 0, found.now) if fine else Conflict(write.at, found.record, found.now)
        return self._exchange(write, nonce)

    def _insert(self, write: Insert, nonce: str) -> Outcome | SpaceBusy:
        """After a try without an answer the row is looked for: some services answer each further one with a 500."""
        if nonce in self._doubtful and (there := self._fetch(write.at)).record is not None:
            return Conflict(write.at, there.record, there.now)
        key = row_key(write.at)
        try:
            row = self._service.create(self._new(write, key, nonce))
        except Disconnected as error:
            if error.sent:
                self._doubtful.add(nonce)
            raise
        if row is not None:
            self._remember(key, row)
            return Written(row.version, row.fence, row.modified)
        found = self._fetch(write.at)
        if found.record is None:  # removed meanwhile, or not visible yet
            return SPACE_BUSY
        return Conflict(write.at, found.record, found.now)

    def _exchange(self, write: Replace | Remove, nonce: str) -> Outcome | SpaceBusy:
        """Replace or remove a row, if it has the ETag with which the write's condition held."""
        key = row_key(write.at)
        seen = self._guess(key, write)
        for _ in range(TRIES):
            if seen is None:
                row, now = self._find(key)
                record = None if row is None else row.record()
                if row is None or not fits(write, record):
                    return Conflict(write.at, record, now)
                seen = _Seen(row.handle, row.version, row.fence)
            answer = self._send_change(key, seen, write, nonce)
            if isinstance(answer, Written):
                return answer
            self._forget(key)
            seen = None
        return SPACE_BUSY

    def _send_change(self, key: str, seen: _Seen, write: Replace | Remove, nonce: str) -> Written | RowRefused:
        if isinstance(write, Remove):
            removed = self._service.remove(key, seen.handle)
            if isinstance(removed, RowRefused):
                return removed
            self._forget(key)
            return Written(f"removed {nonce}", 0, removed)
        changed = self._service.change(key, seen.handle, self._changed(write, seen.fence, nonce))
        if isinstance(changed, RowRefused):
            return changed
        self._remember(key, changed, None if write.draw else seen.fence)
        return Written(changed.version, changed.number if write.draw else seen.fence, changed.modified)

    # -- what this process has seen -----------------------------------------------------------------

    def _guess(self, key: str, write: Replace | Remove) -> _Seen | None:
        """Return the row as it was last read, if the condition held then. The ETag decides whether that is still so."""
        with self._mutex:
            seen = self._seen.get(key)
        if seen is None:
            return None
        fine = seen.fence == write.fence if write.fence is not None else seen.version == write.version
        return seen if fine else None

    def _remember(self, key: str, row: ServiceRow, fence: int | None = None) -> None:
        with self._mutex:
            self._seen[key] = _Seen(row.handle, row.version, row.fence if fence is None else fence)
            self._seen.move_to_end(key)
            if len(self._seen) > MOST_SEEN:
                self._seen.popitem(last=False)
        self._skew = row.modified - self._clock.now()

    def _forget(self, key: str) -> None:
        with self._mutex:
            self._seen.pop(key, None)

    # -- values ----------------------------------------------------------------------------------

    def _new(self, write: Insert, key: str, nonce: str) -> dict[str, Any]:
        at = write.at
        place = {"key": key, "space": short(at.space), "kind": short(at.kind), "address": address_column(at, key)}
        return {**place, **self._put(write, nonce), "fence": None if write.draw else "0", "body": self._body(write)}

    def _changed(self, write: Replace, fence: int, nonce: str) -> dict[str, Any]:
        body = {} if write.body is None else {"body": self._body(write)}
        return {**self._put(write, nonce), "fence": None if write.draw else str(fence), **body}

    def _put(self, write: Insert | Replace, nonce: str) -> dict[str, Any]:
        due = None if write.due_in is None else self._estimate() + write.due_in
        return {
            "state": as_text(write.state),
            "nonce": as_text(nonce),
            "lease": write.lease,
            "stamped": None,
            "queue": as_text(write.queue),
            "due_in": write.due_in,
            "due": due,
        }

    def _body(self, write: Insert | Replace) -> str | None:
        text = as_text(write.body or "")
        if text is not None and len(text) > self.body_limit:
            raise BadWrite(f"A body of {len(text):,} characters is more than this store takes; shorten it.")
        return text

    def ask_time(self) -> None:
        """Learn the service's time, before the first write puts an estimate of it into the column `due`."""
        self._find(NO_KEY)

    def _estimate(self) -> float:
        """Estimate the service's time."""
        return self._clock.now() + self._skew

    # -- reads -----------------------------------------------------------------------------------

    def _find(self, key: str) -> tuple[ServiceRow | None, float]:
        """Return a row and the time, less the fractions that the service's stamps lack: no lease ends too early."""
        row, now = self._service.find(key)
        self._skew = now - self._clock.now()
        if row is None:
            self._forget(key)
        else:
            self._remember(key, row)
        return row, now - RESOLUTION

    def _fetch(self, at: Address) -> Found:
        row, now = self._find(row_key(at))
        return Found(None if row is None else row.record(), now)

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        return [self._fetch(at) for at in addresses]

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
        """Scan in the service's own order, so `newest` is ignored. What it has no index for is searched among all rows
        of the kind.
        """
        scan = f"{crc32(repr((kind, space, state, prefix)).encode()):08x}:"
        if after is not None and not after.startswith(scan):
            raise BadWrite("This cursor is not of this scan; begin it again without one.")
        after = after and after.removeprefix(scan)
        while True:
            page = self._service.page(short(kind), None if space is None else short(space), state, after, limit)
            records = [row.record() for row in page.rows if row.values.get("kind") == short(kind)]
            fitting = [
                one
                for one in records
                if one.at.kind == kind
                and space in (None, one.at.space)
                and state in (None, one.state)
                and one.at.space.startswith(prefix or "")
            ]
            after = page.after
            if fitting or after is None:
                return Page(fitting, after and scan + after, page.now - RESOLUTION)

    # -- what is due -----------------------------------------------------------------------------

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        now, waiting = self._waiting(kind, frozenset(queues), limit)
        ripe = sorted([row for row in waiting if _due_at(row) <= now], key=_due_at)
        later = [_due_at(row) for row in waiting if _due_at(row) > now] + [_due_at(row) for row in ripe[limit:]]
        hidden = [one for row in ripe[:limit] if (one := self._hide(row, now, hide)) is not None]
        now = max([now, *(one.due_at - hide for one in hidden if one.due_at is not None)])
        if hidden:
            later.append(now + hide)
        return Due(hidden, max(0.0, min(later) - now) if later else None, now)

    def _waiting(self, kind: str, queues: frozenset[str], limit: int) -> tuple[float, list[ServiceRow]]:
        """Return rows of these queues in the order of their times, up to the first that is certainly not due yet."""
        found: list[ServiceRow] = []
        after: str | None = None
        while True:
            page = self._service.waiting(short(kind), after, min(limit + 1, 200))
            found += [row for row in page.rows if self._is_asked_for(row, kind, queues)]
            late = [row for row in found if float(row.values.get("due") or 0.0) > page.now + SLACK]
            after = page.after
            if after is None or late or sum(_due_at(row) <= page.now for row in found) > limit:
                return page.now, found

    def _is_asked_for(self, row: ServiceRow, kind: str, queues: frozenset[str]) -> bool:
        values = row.values
        wanted = values.get("kind") == short(kind) and values.get("due_in") is not None
        return wanted and of_text(values.get("queue")) in queues

    def _hide(self, row: ServiceRow, now: float, hide: float) -> Record | None:
        """Postpone a row by `hide` seconds. None: another caller did so first, or changed it."""
        key = str(row.values["key"])
        values = {"due_in": hide, "due": now + hide, "stamped": row.updated, "fence": str(row.fence)}
        changed = self._service.change(key, row.handle, values)
        if isinstance(changed, RowRefused):
            return None
        self._remember(key, changed, row.fence)
        return structs.replace(row.record(), version=changed.version, due_at=changed.modified + hide)


def _due_at(row: ServiceRow) -> float:
    return row.modified + float(row.values["due_in"])
