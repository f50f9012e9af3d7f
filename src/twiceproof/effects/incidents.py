"""Tells a hook of reviews, failures and dead letters: one message per flow and quiet period, over all processes.

What happens is heard where it is written, by whichever process, and told a moment later on a thread of its own: no run
waits for it, and none is harmed by a receiver that is away. What a process had not told yet when it was killed, a
worker that starts finds in the store, as long as it still waits for somebody.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Collection

import msgspec
from msgspec import Struct, structs

from ..claims.claim import CLAIM, RUN, Claim, claim_of
from ..clock import Clock
from ..errors import Misuse, NotDone, StoreError
from ..operations import Operation, block
from ..records import Address, Batch, Insert, Record, Replace, Written
from ..stores.base import Store
from ..threads import DelayedCall, at_fork
from .duplicate_alerts import (
    DEAD_LETTER,
    EVENTS,
    FAILURE,
    REVIEW,
    Hook,
    Notice,
    claim_notice,
    notice_at,
    release_notice,
)

__all__ = ["Incidents"]


log = logging.getLogger("twiceproof")

WATCHED = {
    (CLAIM, "review"): REVIEW,
    (CLAIM, "failed"): FAILURE,
    (RUN, "review"): REVIEW,
    (RUN, "failed"): FAILURE,
    ("letter", "kept"): DEAD_LETTER,
}
SOON = 1.0  # seconds after which it is told: what else happens meanwhile is in the same message
AGAIN = 60.0  # after a message that could not be sent, or while the store is away
GRACE = 2.0  # for the last message when the app is closed
MOST = 10_000  # that wait to be looked at
LOOKED_AT = 200  # of each kind, when a worker starts
LONGEST = 300  # characters of a reason

Group = tuple[str, str, str]  # tenant, event and operation


class DeadLetterNotice(Struct, frozen=True):
    """What a notice says of a letter."""

    id: str
    hook: str
    reason: str
    tenant: str = "default"


class Heap(Struct, frozen=True):
    """What has happened in a group since it was last told of; the latest stands for all."""

    count: int
    first_at: float
    last_at: float
    key: str
    reason: str


class Incidents:
    """`hear` is given to a store; `flush` looks at what was heard and tells it. `name` tells hooks apart."""

    def __init__(self, store: Store, hook: Hook, *, on: Collection[str], quiet: float, name: str, clock: Clock) -> None:
        wanted = (on,) if isinstance(on, str) else tuple(on)
        if not wanted or not set(wanted) <= set(EVENTS):
            raise Misuse(f"on={on!r} names what nobody tells of; give some of {', '.join(EVENTS)}.")
        if not callable(hook):
            raise Misuse("notify takes a hook: to_log(), to_webhook(…), to_email(…), or a function.")
        self._store = store
        self._hook = hook
        self._watched = {place: event for place, event in WATCHED.items() if event in wanted}
        self._quiet = quiet
        self._name = name
        self._clock = clock
        self._stopped = False
        self._reset()
        at_fork(self, in_child=Incidents._reset)
        _all.add(self)

    def _reset(self) -> None:
        """In a forked child: what was heard so far is the parent's to tell."""
        self._mutex = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._heard: dict[tuple[Address, str], bool] = {}  # whether it may have been told already
        self._heaps: dict[Group, Heap] = {}
        self._errand: DelayedCall | None = None
        self._due = 0.0  # when it goes

    # -- hearing ---------------------------------------------------------------------------------

    def hear(self, batch: Batch) -> None:
        """On the thread that commits: as short as can be."""
        for write in batch.writes:
            if isinstance(write, Insert | Replace):
                event = self._watched.get((write.at.kind, write.state))
                if event is not None:
                    self._note(write.at, event)

    def look_around(self) -> Operation[None]:
        """When a worker starts: what waits for somebody, and may not have been told by a process that died."""
        for (kind, state), event in self._watched.items():
            if event == FAILURE:
                continue  # it waits for nobody, and there may be many
            page = yield from self._store.scan(kind, state=state, limit=LOOKED_AT)
            for record in page.records:
                self._note(record.at, event, found=True)

    def _note(self, at: Address, event: str, *, found: bool = False) -> None:
        with self._mutex:
            if len(self._heard) < MOST:
                self._heard[at, event] = found and self._heard.get((at, event), True)
        self._arm(SOON)

    def _arm(self, seconds: float) -> None:
        due = self._clock.monotonic() + seconds
        with self._mutex:
            if self._stopped or (self._errand is not None and self._errand.is_alive() and self._due <= due):
                return
            if self._errand is not None:
                self._errand.cancel()
            self._errand, self._due = DelayedCall(seconds, self._run, "twiceproof-notices"), due
            try:
                self._errand.start()
            except RuntimeError:  # no thread to be had: told with the next one
                self._errand = None

    def _run(self) -> None:
        with self._mutex:
            self._errand = None  # what is heard from now on arms another
        wait = self.flush()
        if wait is not None:
            self._arm(wait)

    # -- telling ---------------------------------------------------------------------------------

    def flush(self) -> float | None:
        """Tell what can be told now. In how many seconds to come again; None: there is nothing left."""
        with self._one_at_a_time:
            try:
                self._gather()
                waits = [self._tell(group) for group in list(self._heaps)]
            except StoreError as error:
                if error.data.get("closed"):
                    return None
                log.warning("notices wait for the store: %s", error)
                return AGAIN
        left = [wait for wait in waits if wait is not None]
        return min(left) if left else None

    def _gather(self) -> None:
        with self._mutex:
            heard = dict(self._heard)
        for (at, event), found in heard.items():
            block(self._add(at, event, found))
            with self._mutex:
                if self._heard.get((at, event)) == found:
                    del self._heard[at, event]

    def _add(self, at: Address, event: str, found: bool) -> Operation[None]:
        """By what is there now: what was settled meanwhile needs nobody."""
        record = (yield from self._store.read(at)).record
        if record is None or self._watched.get((at.kind, record.state)) != event:
            return
        told = _told_of(record, event)
        if told is None:
            return
        group, key, reason = told
        if found and (yield from self._was_told(group, record)):
            return
        heap = self._heaps.get(group) or Heap(0, record.updated_at, record.updated_at, key, reason)
        self._heaps[group] = structs.replace(
            heap, count=heap.count + 1, last_at=max(heap.last_at, record.updated_at), key=key, reason=reason
        )

    def _was_told(self, group: Group, record: Record) -> Operation[bool]:
        last = (yield from self._store.read(self._place(group))).record
        return last is not None and last.updated_at >= record.updated_at

    def _place(self, group: Group) -> Address:
        tenant, event, operation = group
        return notice_at(tenant, "incidents", self._name, event, operation)

    def _tell(self, group: Group) -> float | None:
        """None: told, or perhaps; else in how many seconds to try again."""
        tenant, event, operation = group
        heap, at = self._heaps[group], self._place(group)
        written = block(claim_notice(self._store, at, self._quiet))
        if not isinstance(written, Written):
            return written
        notice = Notice(
            f"{event}_{at.key[:24]}_{written.version}",
            tenant,
            "",
            operation,
            heap.key,
            heap.count,
            heap.first_at,
            heap.last_at,
            event,
            heap.reason,
        )
        try:
            self._hook(notice)
        except NotDone as error:
            log.warning("a notice (%s) was not sent, will try again: %s", notice.line, error)
            block(release_notice(self._store, at, written))
            return AGAIN
        except Exception as error:  # noqa: BLE001 - perhaps sent: not a second time
            log.warning("a notice (%s) may not have been sent: %s: %s", notice.line, type(error).__name__, error)
        del self._heaps[group]
        return None

    def stop(self) -> None:
        """What was heard is told now, if there is no quiet period, in bounded time."""
        with self._mutex:
            self._stopped = True
            errand, self._errand = self._errand, None
            idle = errand is None and not self._heard and not self._heaps
        if errand is not None:
            errand.cancel()
        if idle:
            return
        last = threading.Thread(target=self.flush, name="twiceproof-notices", daemon=True)
        try:
            last.start()
        except RuntimeError:  # the process is ending, and no thread is to be had
            self.flush()
        else:
            last.join(GRACE)


_all: weakref.WeakSet[Incidents] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for incidents in list(_all):
        incidents.stop()


def _told_of(record: Record, event: str) -> tuple[Group, str, str] | None:
    """Whom it is about, its key, and why. None: nobody need hear of it."""
    if event == DEAD_LETTER:
        letter = msgspec.json.decode(record.body, type=DeadLetterNotice)
        return (letter.tenant, event, letter.hook), letter.id, _short(letter.reason)
    claim = claim_of(record)
    if event == FAILURE and not _is_news(claim):
        return None
    fault = claim.fault
    why = claim.reason if event == REVIEW or fault is None else f"{fault.type}: {fault.message}"
    return (claim.tenant, event, claim.operation), claim.key, _short(why)


def _is_news(claim: Claim) -> bool:
    """What may be tried again by itself has not failed for good; what a person ended, that person knows."""
    fault = claim.fault
    return claim.settled is None and (fault is None or (not fault.retryable and fault.type != "Cancelled"))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
