"""StoreClock: notices that the store's clock was ahead and was set back, and corrects records written meanwhile.

A record's times are stamped by the store, so a record written while its clock was an hour ahead would wait for an hour
once the clock is right again. Its duration is still known, as its due time less the time of its write: it is counted
again from the present. Fences never change here, and a lease gets its whole length from now: longer than its holder
relies on it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from msgspec import Struct, structs

from ...claims.claim import CLAIM, HELD, QUEUED, RUN, WAITING, body_of
from ...clock import Clock, moment
from ...errors import CannotOpen
from ...operations import Operation, block
from ...records import Address, Insert, Record, Replace, Written, record_kind
from ...stores.base import Store
from ..engine.ledger import RETRY, WAITS, entry_of, entry_write
from ..engine.ledger import STEP_KIND as STEP

__all__ = ["TOLERANCE", "StoreClock", "bring_back"]


log = logging.getLogger("twiceproof.work")

TOLERANCE = 5.0  # seconds; what is less far ahead is due soon enough, and nodes of a cluster differ by as much
EVERY = 60.0  # seconds between two checks, unless a step of the clock is noticed
PAGE = 500
CLOCK_KIND, SPACE = record_kind("clock"), "~clock"  # no tenant's own: a name has no tilde
Watched = Sequence[tuple[str, str]]  # kinds of records and their states
RUNS_AND_CLAIMS: Watched = ((RUN, QUEUED), (RUN, HELD), (RUN, WAITING), (CLAIM, HELD))


class _Latest(Struct, frozen=True):
    """The latest store time that a worker has seen, written when it began and when the clock stepped."""

    latest: float


class StoreClock:
    """Compares the store's clock with this process' monotonic clock; its worker or relay corrects what is `watched`."""

    def __init__(self, store: Store, clock: Clock, watched: Watched = RUNS_AND_CLAIMS, *, name: str = "self") -> None:
        self._store = store
        self._clock = clock
        self._watched = watched
        self._at = Address(SPACE, CLOCK_KIND, name)  # its own record: each corrects only what it watches
        self._offset: float | None = None  # the store's time less the monotonic time
        self._latest = 0.0
        self._stepped = False
        self._checked_at: float | None = None

    def observe(self, now: float) -> None:
        """Take notice of the store's time."""
        offset = now - self._clock.monotonic()
        if self._offset is not None and abs(offset - self._offset) > TOLERANCE:
            self._stepped = True
        self._offset = offset
        self._latest = max(self._latest, now)

    @property
    def is_due(self) -> bool:
        """Whether to check: the clock was set, or the last check was a minute ago."""
        checked = self._checked_at
        return self._stepped or checked is None or self._clock.monotonic() - checked >= EVERY

    def look(self, now: float) -> None:
        """Take notice of the store's time, and check if that is due."""
        self.observe(now)
        if self.is_due:
            block(self.check())

    def check(self) -> Operation[None]:
        """Correct records from the future, if the clock is behind what some worker has seen."""
        first, stepped = self._checked_at is None, self._stepped
        self._checked_at, self._stepped = self._clock.monotonic(), False
        try:
            found = yield from self._store.read(self._at)
        except CannotOpen as error:  # one bad row must not stop every worker
            log.error("whether the store's clock was set back cannot be checked: %s", error)
            return
        known = _latest(found.record)
        latest = max(known, self._latest)
        self._latest = found.now
        if latest > found.now + TOLERANCE:
            log.warning(
                "the store's clock was set back from %s to %s; what was written ahead is brought back",
                moment(latest),
                moment(found.now),
            )
            brought = yield from bring_back(self._store, self._watched)
            log.warning(
                "%d %s were brought back", brought, " and ".join(sorted({f"{kind}s" for kind, _ in self._watched}))
            )
        elif not (stepped or (first and known < found.now - EVERY)):
            return
        body = body_of(_Latest(found.now))
        yield from self._store.write(
            Insert(self._at, body) if found.record is None else Replace(self._at, body, version=found.record.version)
        )


def _latest(record: Record | None) -> float:
    return 0.0 if record is None else msgspec.json.decode(record.body, type=_Latest).latest


def bring_back(store: Store, watched: Watched = RUNS_AND_CLAIMS) -> Operation[int]:
    """Correct records that are from the future. Return how many there were."""
    count = 0
    for kind, state in watched:
        after: str | None = None
        while True:
            page = yield from store.scan(kind, state=state, after=after, limit=PAGE)
            for record in page.records:
                if record.updated_at > page.now + TOLERANCE:
                    try:
                        count += yield from _bring_back(store, record)
                    except CannotOpen as error:
                        log.error("not brought back: %s", error)
            after = page.after
            if after is None:
                break
    return count


def _bring_back(store: Store, record: Record) -> Operation[bool]:
    """Correct a record, and its waits and retries unless it is held: then its holder writes those. Conditional on the
    version, so that any other write wins."""
    steps: list[Insert | Replace] = []
    if record.at.kind == RUN and record.state != HELD:
        steps = yield from _steps(store, record.at.space)
    written_at = record.updated_at
    again = Replace(
        record.at,
        None,
        record.state,
        version=record.version,
        lease=None if record.lease_until is None else max(0.001, record.lease_until - written_at),
        queue=record.queue,
        due_in=None if record.due_at is None else max(0.0, record.due_at - written_at),
    )
    written = yield from store.write(again, *steps[: store.batch_limit - 1])
    return isinstance(written, Written)


def _steps(store: Store, space: str) -> Operation[list[Insert | Replace]]:
    """Return writes that correct sleeps, time-outs and retries from the future."""
    writes: list[Insert | Replace] = []
    after: str | None = None
    while True:
        page = yield from store.scan(STEP, space=space, after=after, limit=PAGE)
        for record in page.records:
            ahead = record.updated_at - page.now
            if ahead > TOLERANCE and record.state in (WAITS, RETRY):
                entry = entry_of(record)
                if entry.note.not_before is not None:
                    note = structs.replace(entry.note, not_before=entry.note.not_before - ahead)
                    writes.append(entry_write(space, structs.replace(entry, note=note)))
        after = page.after
        if after is None:
            return writes
