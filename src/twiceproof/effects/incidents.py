"""Notifies of reviews, failures, dead letters, findings, approvals and parked messages.

There is one notice per flow and quiet period, for all processes. Each process observes its own writes and sends
notices a moment later on a separate thread, so that runs neither wait for a receiver nor fail with it. What a killed
process had not sent, a starting worker finds in the store, as long as it still needs attention.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Collection

import msgspec
from msgspec import Struct, structs

from ..claims.claim import CLAIM, DONE, FAILED, RUN, Claim, claim_of, parse_space, run_address
from ..clock import Clock
from ..errors import CannotOpen, Misuse, NotDone, StoreError
from ..operations import Operation, block
from ..records import Address, Batch, Insert, Record, Replace, Written, record_kind
from ..stores.base import Store
from ..threads import DelayedCall, at_fork, run_within
from .duplicate_alerts import (
    APPROVAL,
    DEAD_LETTER,
    EVENTS,
    FAILURE,
    FINDING,
    LATE,
    PARKED,
    REVIEW,
    Hook,
    Notice,
    claim_notice,
    notice_at,
    release_notice,
)

__all__ = ["DEAD_LETTER_KIND", "FINDING_KIND", "Incidents"]


log = logging.getLogger("twiceproof")

DEAD_LETTER_KIND = record_kind("dead-letter", expires=True)
FINDING_KIND = record_kind("finding", expires=True)
APPROVAL_KIND = record_kind("approval", beside_run=True)
MESSAGE_KIND = record_kind("message", expires=True)
WATCHED = {
    (CLAIM, "review"): REVIEW,
    (CLAIM, "failed"): FAILURE,
    (RUN, "review"): REVIEW,
    (RUN, "failed"): FAILURE,
    (DEAD_LETTER_KIND, "kept"): DEAD_LETTER,
    (FINDING_KIND, "open"): FINDING,
    (APPROVAL_KIND, "open"): APPROVAL,
    (MESSAGE_KIND, "parked"): PARKED,
    (MESSAGE_KIND, "pending"): LATE,
}
SOON = 1.0  # seconds before a notice is sent, to include further events
AGAIN = 60.0  # seconds until the next attempt after a failure of the receiver or the store
GRACE = 2.0  # for the last message when the app is closed
MOST = 10_000  # observed writes that wait to be processed
LOOKED_AT = 200  # of each kind, when a worker starts and now and then
HANDED_OUT = 60.0  # seconds; a relay that cannot publish a message hides it for less
LONGEST = 300  # characters of a reason

Group = tuple[str, str, str]  # tenant, event and operation


class DeadLetterNotice(Struct, frozen=True):
    """The fields of a dead letter that a notice needs."""

    id: str
    hook: str
    reason: str
    tenant: str = "default"


class FindingNotice(Struct, frozen=True):
    """The fields of a finding that a notice needs. `fresh`: it was opened, or opened again, by its latest run."""

    reconciliation: str
    key: str
    summary: str
    tenant: str = "default"
    fresh: bool = False


class MessageNotice(Struct, frozen=True):
    """The fields of a message that a notice needs. `starts`: how often a target has refused it."""

    key: str
    target: str
    why: str = ""
    starts: int = 0


class PendingNotice(Struct, frozen=True):
    """The events of a group since its last notice; key and reason are those of the latest."""

    count: int
    first_at: float
    last_at: float
    key: str
    reason: str


class Incidents:
    """`observe` is registered with a store; `flush` sends notices of what was observed. `name` identifies the hook."""

    def __init__(
        self,
        store: Store,
        hook: Hook,
        *,
        on: Collection[str],
        quiet: float,
        name: str,
        clock: Clock,
        late: float = 900.0,
    ) -> None:
        wanted = (on,) if isinstance(on, str) else tuple(on)
        if not wanted or not set(wanted) <= set(EVENTS):
            raise Misuse(f"on={on!r} has an unknown event; give some of {', '.join(EVENTS)}.")
        if not callable(hook):
            raise Misuse("notify takes a hook: to_log(), to_webhook(…), to_email(…), or a function.")
        self._store = store
        self._hook = hook
        self._watched = {place: event for place, event in WATCHED.items() if event in wanted}
        self._quiet = quiet
        self._late = late
        self._name = name
        self._clock = clock
        self._stopped = False
        self._reset()
        at_fork(self, in_child=Incidents._reset)
        _all.add(self)

    def _reset(self) -> None:
        """Run in a forked child, which leaves earlier observations to its parent."""
        self._mutex = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._observed: dict[tuple[Address, str], bool] = {}  # whether a notice may have been sent already
        self._pending: dict[Group, PendingNotice] = {}
        self._delayed: DelayedCall | None = None
        self._due = 0.0  # when the delayed call runs

    # -- observing -------------------------------------------------------------------------------

    def observe(self, batch: Batch) -> None:
        """Note relevant writes. This runs on the committing thread, so it must be short."""
        for write in batch.writes:
            if isinstance(write, Insert | Replace):
                event = self._watched.get((write.at.kind, write.state))
                if event is not None and event != LATE:
                    self._note(write.at, event)

    def scan_store(self) -> Operation[None]:
        """At the start of a worker, and now and then: find what needs attention, in case the process that recorded it
        has died; and messages that wait for long, which nobody records.
        """
        for (kind, state), event in self._watched.items():
            if event == FAILURE:
                continue  # needs no decision, and there may be many
            page = yield from self._store.scan(kind, state=state, limit=LOOKED_AT)
            for record in page.records:
                if event != LATE or self._is_late(record, page.now):
                    self._note(record.at, event, found=True)

    def _is_late(self, record: Record, now: float) -> bool:
        """Whether a message waits for longer than it should. One that was sent with a delay waits for its time."""
        if record.created_at + self._late > now:
            return False
        if record.due_at is None or record.due_at <= now + HANDED_OUT:
            return True
        try:
            return msgspec.json.decode(record.body, type=MessageNotice).starts > 0
        except msgspec.DecodeError:
            return False

    def _note(self, at: Address, event: str, *, found: bool = False) -> None:
        with self._mutex:
            if len(self._observed) < MOST:
                self._observed[at, event] = found and self._observed.get((at, event), True)
        self._arm(SOON)

    def _arm(self, seconds: float) -> None:
        due = self._clock.monotonic() + seconds
        with self._mutex:
            if self._stopped or (self._delayed is not None and self._delayed.is_alive() and self._due <= due):
                return
            if self._delayed is not None:
                self._delayed.cancel()
            self._delayed, self._due = DelayedCall(seconds, self._run, "twiceproof-notices"), due
            try:
                self._delayed.start()
            except RuntimeError:  # no thread could be started: sent with the next one
                self._delayed = None

    def _run(self) -> None:
        with self._mutex:
            self._delayed = None  # later observations schedule another call
        wait = self.flush()
        if wait is not None:
            self._arm(wait)

    # -- sending ---------------------------------------------------------------------------------

    def flush(self) -> float | None:
        """Send what can be sent now. Return the seconds until the next attempt, or None if nothing is left."""
        with self._one_at_a_time:
            try:
                self._gather()
                waits = [self._send(group) for group in list(self._pending)]
            except StoreError as error:
                if error.data.get("closed"):
                    return None
                log.warning("notices wait for the store: %s", error)
                return AGAIN
        left = [wait for wait in waits if wait is not None]
        return min(left) if left else None

    def _gather(self) -> None:
        with self._mutex:
            observed = dict(self._observed)
        for (at, event), found in observed.items():
            block(self._add(at, event, found))
            with self._mutex:
                if self._observed.get((at, event)) == found:
                    del self._observed[at, event]

    def _add(self, at: Address, event: str, found: bool) -> Operation[None]:
        """Read the current record first: if it has been settled meanwhile, no notice is needed."""
        record = (yield from self._store.read(at)).record
        if record is None or self._watched.get((at.kind, record.state)) != event:
            return
        try:
            details = _details_of(record, event)
        except (CannotOpen, msgspec.DecodeError):  # encrypted with a key that this process lacks: skip it
            log.warning("there is no notice of %s in %s: it cannot be read", at.kind, at.space)
            return
        if details is None or (event == APPROVAL and not (yield from self._is_awaited(record))):
            return
        group, key, reason = details
        if found and (yield from self._was_sent(group, record)):
            return
        pending = self._pending.get(group) or PendingNotice(0, record.updated_at, record.updated_at, key, reason)
        self._pending[group] = structs.replace(
            pending, count=pending.count + 1, last_at=max(pending.last_at, record.updated_at), key=key, reason=reason
        )

    def _is_awaited(self, approval: Record) -> Operation[bool]:
        """Whether a decision would still continue the run: a cancelled run leaves its request behind."""
        run = (yield from self._store.read(run_address(approval.at.space))).record
        return run is not None and run.state not in (DONE, FAILED)

    def _was_sent(self, group: Group, record: Record) -> Operation[bool]:
        last = (yield from self._store.read(self._address(group))).record
        return last is not None and last.updated_at >= record.updated_at

    def _address(self, group: Group) -> Address:
        tenant, event, operation = group
        return notice_at(tenant, "incidents", self._name, event, operation)

    def _send(self, group: Group) -> float | None:
        """Return None if it was sent or may have been, else the seconds until the next attempt."""
        tenant, event, operation = group
        pending, at = self._pending[group], self._address(group)
        written = block(claim_notice(self._store, at, self._quiet))
        if not isinstance(written, Written):
            return written
        notice = Notice(
            f"{event}_{at.key[:24]}_{written.version}",
            tenant,
            "",
            operation,
            pending.key,
            pending.count,
            pending.first_at,
            pending.last_at,
            event,
            pending.reason,
        )
        try:
            self._hook(notice)
        except NotDone as error:
            log.warning("a notice (%s) was not sent, will try again: %s", notice.line, error)
            block(release_notice(self._store, at, written))
            return AGAIN
        except Exception as error:  # noqa: BLE001 - it may have been sent: not repeated
            log.warning("a notice (%s) may not have been sent: %s: %s", notice.line, type(error).__name__, error)
        del self._pending[group]
        return None

    def stop(self) -> None:
        """Send pending notices now, unless a quiet period runs, within a bounded time."""
        with self._mutex:
            self._stopped = True
            delayed, self._delayed = self._delayed, None
            idle = delayed is None and not self._observed and not self._pending
        if delayed is not None:
            delayed.cancel()
        if not idle:
            run_within(GRACE, self.flush, "twiceproof-notices")


_all: weakref.WeakSet[Incidents] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for incidents in list(_all):
        incidents.stop()


def _details_of(record: Record, event: str) -> tuple[Group, str, str] | None:
    """Return the group, key and reason for a notice, or None if none is needed."""
    if event == DEAD_LETTER:
        letter = msgspec.json.decode(record.body, type=DeadLetterNotice)
        return (letter.tenant, event, letter.hook), letter.id, _short(letter.reason)
    if event == FINDING:
        found = msgspec.json.decode(record.body, type=FindingNotice)
        group = (found.tenant, event, found.reconciliation)
        return (group, found.key, _short(found.summary)) if found.fresh else None
    if event == APPROVAL:
        run = parse_space(record.at.space)
        return (run.tenant, event, run.operation), run.key, _short(record.at.key)
    if event in (PARKED, LATE):
        message = msgspec.json.decode(record.body, type=MessageNotice)
        return (record.at.space.partition("/")[0], event, message.target), message.key, _short(message.why)
    claim = claim_of(record)
    if event == FAILURE and not _is_final(claim):
        return None
    fault = claim.fault
    why = claim.reason if event == REVIEW or fault is None else f"{fault.type}: {fault.message}"
    return (claim.tenant, event, claim.operation), claim.key, _short(why)


def _is_final(claim: Claim) -> bool:
    """Whether the failure is final. Failures that are retried, and those decided by a person, need no notice."""
    fault = claim.fault
    return claim.settled is None and (fault is None or (not fault.retryable and fault.type != "Cancelled"))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
