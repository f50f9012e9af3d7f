"""Presence: each worker has a record in the store, with a lease that it renews while it is alive.

It also looks from time to time for due runs that no live worker serves, because their flow or version was removed.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct, structs

from ...claims.claim import QUEUED, RUN, WAITING, body_of
from ...claims.states import EXPIRE
from ...errors import StoreError
from ...operations import Operation, block
from ...records import Address, Insert, Record, Remove, Replace, Written
from ...stores.base import Store
from ...threads import BackgroundThread, ThreadRun
from ...version import __version__
from ..runtime import WORKER_KIND

__all__ = ["LEASE", "Presence", "WorkerNote", "WorkerShape", "list_workers", "stranded"]


log = logging.getLogger("twiceproof.work")

SPACE, KIND = "~workers", WORKER_KIND  # no tenant's own: a name has no tilde
BEAT = 20.0  # seconds between two heartbeats
LEASE = 3 * BEAT  # a worker without a heartbeat for so long is gone
REMEMBERED = 86_400.0  # seconds for which a worker that is gone is listed
LOOK_EVERY = 15  # heartbeats between two searches for stranded runs
LEAVE = "leave"  # the message to a worker's thread to remove its record
GRACE = 1.0  # seconds that a worker waits for its record to be removed
PAGE = 1_000


class WorkerNote(Struct, frozen=True, omit_defaults=True):
    """The body of a worker's record. `flows` are those that it serves, as `name@version`."""

    host: str
    pid: int
    concurrency: int
    flows: tuple[str, ...] = ()
    release: str = ""


class WorkerShape(Struct, frozen=True):
    """A worker, as it is listed. `gone`: its lease has lapsed."""

    name: str
    host: str
    pid: int
    concurrency: int
    flows: tuple[str, ...]
    release: str
    since: float
    last_heartbeat: float
    gone: bool

    def shape(self) -> dict[str, Any]:
        return structs.asdict(self)


class Presence:
    """Sends a worker's heartbeats, on a thread of its own so that a busy worker is not taken for gone."""

    def __init__(self, store: Store, name: str, flows: Callable[[], Collection[str]], concurrency: int) -> None:
        self._store = store
        self._at = Address(SPACE, KIND, name)
        self._flows = flows
        self._concurrency = concurrency
        self._version: str | None = None
        self._beats = 0
        self._warned: dict[str, int] = {}
        self._thread = BackgroundThread(self, Presence._turn, "twiceproof-presence", grace=GRACE, finish=True)

    def start(self) -> None:
        with suppress(RuntimeError):  # no thread can be started: the worker works, and is not listed
            self._thread.start()

    def leave(self) -> None:
        """Remove the record, in bounded time: if that fails, the worker is listed as gone later."""
        if self._thread.is_alive():
            self._thread.send(LEAVE)
            self._thread.stop()

    def _turn(self, run: ThreadRun) -> float | None:
        try:
            block(self._remove() if run.message is LEAVE else self.beat())
        except Exception as error:  # noqa: BLE001 - the worker is only not listed, or listed as gone later
            if isinstance(error, StoreError) and error.data.get("closed"):
                return None
            log.debug("the record of this worker could not be written: %s", error)
        return BEAT

    def beat(self) -> Operation[None]:
        """Renew the record; from time to time also look for stranded runs."""
        flows = tuple(sorted(self._flows()))
        body = body_of(WorkerNote(socket.gethostname(), os.getpid(), self._concurrency, flows, __version__))
        while True:
            written = yield from self._store.write(self._write(body))
            if isinstance(written, Written):
                self._version = written.version
                break
            self._version = written.found.version if written.found is not None else None
        if self._beats % LOOK_EVERY == 0:
            self._warn((yield from stranded(self._store, flows)))
        self._beats += 1

    def _write(self, body: str) -> Insert | Replace:
        times = {"lease": LEASE, "queue": EXPIRE, "due_in": LEASE + REMEMBERED}
        if self._version is None:
            return Insert(self._at, body, **times)  # type: ignore[arg-type]
        return Replace(self._at, body, version=self._version, **times)  # type: ignore[arg-type]

    def _remove(self) -> Operation[None]:
        if self._version is not None:
            yield from self._store.write(Remove(self._at, version=self._version))

    def _warn(self, found: dict[str, int]) -> None:
        for name, count in found.items():
            if self._warned.get(name) is None:
                log.warning(
                    "%d due runs of %s are carried out by no worker that is there; start one that declares it, or say "
                    'accepts=("%s",) on its flow; see: twiceproof workers list',
                    count,
                    name,
                    name.rpartition("@")[2],
                )
        self._warned = found


def list_workers(store: Store) -> Operation[list[WorkerShape]]:
    """Return live workers, and those that went away within the last day without removing their record; oldest first."""
    found: list[WorkerShape] = []
    after: str | None = None
    while True:
        page = yield from store.scan(KIND, space=SPACE, after=after, limit=PAGE)
        found += [_shape(record, page.now) for record in page.records]
        after = page.after
        if after is None:
            return sorted(found, key=lambda worker: (worker.gone, worker.since))


def _shape(record: Record, now: float) -> WorkerShape:
    note = msgspec.json.decode(record.body, type=WorkerNote)
    gone = record.lease_until is None or record.lease_until <= now
    return WorkerShape(
        record.at.key,
        note.host,
        note.pid,
        note.concurrency,
        note.flows,
        note.release,
        record.created_at,
        record.updated_at,
        gone,
    )


def stranded(store: Store, here: Collection[str] = (), *, most: int = PAGE) -> Operation[dict[str, int]]:
    """Count due runs that no live worker serves, by `flow@version`; up to `most` of each state."""
    live = [worker for worker in (yield from list_workers(store)) if not worker.gone]
    served = {name for worker in live for name in worker.flows} | set(here)
    counts: Counter[str] = Counter()
    for state in (QUEUED, WAITING):
        page = yield from store.scan(RUN, state=state, limit=most)
        names = (record.queue.partition("/")[2] for record in page.records if _is_due(record, page.now))
        counts.update(name for name in names if name and name not in served)
    return dict(sorted(counts.items()))


def _is_due(record: Record, now: float) -> bool:
    return record.due_at is not None and record.due_at <= now
