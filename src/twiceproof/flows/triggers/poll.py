"""`@app.poll`: poll a source with a durable cursor and an overlap; each item is claimed by its key."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from ...claims.claim import NO_RESULT, body_of
from ...claims.held_claim import Heartbeat, HeldClaim
from ...claims.policy import lease_for
from ...errors import Misuse, PayloadMismatch, StoreError
from ...operations import Operation, Raised, Returned, UserCall
from ...records import Address, Insert, Record, Replace, Written, record_kind
from ...stores.base import Store
from ..flow import HIGH, Flow
from ..workers.due_work import DueWork, take_due
from .schedule import Ticks, as_tick, interval_at, is_ahead

__all__ = ["KIND", "DuePolls", "Poll", "PollNote", "PollShape", "Polled", "list_polls", "poll_note_of"]


KIND = record_kind("poll")
LEAP = 60.0  # seconds by which a poll may be late
FURTHEST_BACK = 2 * 86_400.0


class Polled(Struct, frozen=True):
    """What a polling function may return: items, and a cursor for the next call (any JSON value)."""

    items: Iterable[Any]
    cursor: Any = None


class PollNote(Struct, frozen=True, omit_defaults=True):
    """The stored state of a poll."""

    next: float
    cursor: Raw = NO_RESULT  # the user's own cursor; empty: by time
    until: float | None = None  # everything up to this time was fetched
    started: int = 0  # items started so far
    sure: float | None = (
        None  # the same before the store's time last leapt forwards: after an outage, or because its clock was wrong
    )


poll_note_of = msgspec.json.Decoder(PollNote).decode


class Poll:
    """One declaration."""

    def __init__(
        self, name: str, function: Callable[..., Any], ticks: Ticks, flow: Flow, overlap: float, since: datetime | None
    ) -> None:
        self.name = name
        self.function = function
        self.ticks = ticks
        self.flow = flow
        self.overlap = overlap
        self.since = since
        tenant = flow.policy.tenant
        self.at = Address(f"{tenant}/{name}/", KIND, "self")
        self.queue = f"{tenant}/{name}@poll"

    def begin(self, now: float) -> PollNote:
        """The first poll is due at once: there may be a lot to fetch."""
        return PollNote(now)

    def polled(self, note: PollNote, now: float) -> PollNote:
        """Everything was fetched up to now."""
        leapt = note.until is not None and now - self.ticks.after(note.until) > LEAP
        return structs.replace(note, until=now, sure=note.until if leapt else note.sure)

    def corrected(self, note: PollNote, now: float) -> PollNote:
        """Return the state to continue from when it was written while the store's clock was ahead.

        It goes back at most half the time for which the flow remembers its keys, so that no item is done again.
        """
        note = structs.replace(note, next=self.ticks.after(now))
        if note.until is None or note.until <= now:
            return note
        keep = self.flow.policy.life.keep
        reach = min(FURTHEST_BACK, (FURTHEST_BACK if keep is None else keep) / 2)
        until = max(now - reach, min(now, now if note.sure is None else note.sure))
        return structs.replace(note, until=until, sure=None)

    def since_of(self, note: PollNote) -> Any:
        """Where the function continues: its own cursor, or a time shortly before the last poll."""
        if note.cursor:
            return msgspec.json.decode(note.cursor)
        return self.since if note.until is None else as_tick(note.until - self.overlap)


class PollShape(Struct, frozen=True, kw_only=True):
    """A poll and where it stands. `next`: null until a worker has prepared it. `until`: everything up to this time was
    fetched. `cursor`: the function's own, null if it goes by time. `started`: items started so far."""

    name: str
    flow: str
    next: float | None
    until: float | None
    cursor: Raw | None
    started: int


def list_polls(store: Store, polls: Iterable[Poll], tenant: str) -> Operation[list[PollShape]]:
    """Return the polls that start a tenant's flows, each with one read."""
    shapes = []
    for one in polls:
        if one.flow.policy.tenant != tenant:
            continue
        record = (yield from store.read(one.at)).record
        note = None if record is None else poll_note_of(record.body)
        shapes.append(
            PollShape(
                name=one.name,
                flow=one.flow.name,
                next=note.next if note else None,
                until=note.until if note else None,
                cursor=note.cursor if note and note.cursor else None,
                started=note.started if note else 0,
            )
        )
    return shapes


log = logging.getLogger("twiceproof.work")


class DuePolls(DueWork):
    """Due polls. Items fetched twice, by the overlap or after a crash, are claimed once: each has its key."""

    kind = KIND
    rank = HIGH

    def __init__(self, store: Store, heartbeat: Heartbeat) -> None:
        self.polls: dict[str, Poll] = {}
        self._store = store
        self._heartbeat = heartbeat

    def add(self, poll: Poll) -> None:
        """Refuse a second function under the same name: both would share one cursor and miss items."""
        known = self.polls.get(poll.queue)
        if known is not None and _place(known) != _place(poll):
            raise Misuse(f"Two functions are polled as {poll.name!r}; give one of them another name=.")
        self.polls[poll.queue] = poll

    def queues(self) -> list[str]:
        return list(self.polls)

    def flow_of(self, queue: str) -> str:
        """A poll has a name of its own."""
        return self.polls[queue].flow.name

    def is_async(self, record: Record) -> bool:
        return inspect.iscoroutinefunction(self.polls[record.queue].function)

    def prepare(self) -> Operation[None]:
        for poll in list(self.polls.values()):
            found = yield from self._store.read(poll.at)
            if found.record is None:
                note = body_of(poll.begin(found.now))
                yield from self._store.write(Insert(poll.at, note, queue=poll.queue, due_in=0.0))
                continue
            known = poll_note_of(found.record.body)
            if is_ahead(poll.ticks, known.next, found.record, found.now):
                yield from self._store.write(_corrected(poll, found.record, known, found.now))

    def pause_before_retry(self, record: Record) -> float:
        return lease_for(interval_at(self.polls[record.queue].ticks, record.due_at or record.updated_at))

    def carry_out(self, record: Record) -> Operation[None]:
        poll = self.polls[record.queue]
        hold = yield from take_due(self._store, self._heartbeat, record, self.pause_before_retry(record))
        if hold is None:
            return  # another worker polls
        try:
            yield from self._poll(poll, poll_note_of(record.body), hold)
        finally:
            self._heartbeat.drop(hold)

    def _poll(self, poll: Poll, note: PollNote, hold: HeldClaim) -> Operation[None]:
        now = hold.held.taken_at
        note = structs.replace(note, next=poll.ticks.after(now))
        finding = yield from UserCall(lambda: poll.function(poll.since_of(note)))
        try:
            note = yield from self._start_all(poll, note, _polled(finding, poll.name), now)
        except _SourceBroke as broke:  # also between two items: the next tick polls again
            log.error("%s could not be polled, will try again: %r", poll.name, broke.__cause__)
            finding = Raised(broke)
        except StoreError:
            with suppress(StoreError):  # if the store is back by now, others need not wait as if this poller had died
                yield from self._move_on(poll, note, hold, polled=False)
            raise
        yield from self._move_on(poll, note, hold, polled=not isinstance(finding, Raised))

    def _move_on(self, poll: Poll, note: PollNote, hold: HeldClaim, *, polled: bool) -> Operation[None]:
        """Also if it took so long that another worker polls: if neither moved the cursor, it would never move."""
        self._heartbeat.drop(hold)
        now = (yield from self._store.read(poll.at)).now
        due_in = max(0.0, note.next - now)
        # It draws a fence, so that a delayed renewal cannot undo it.
        after = Replace(poll.at, body_of(note), fence=hold.held.fence, draw=True, queue=poll.queue, due_in=due_in)
        while True:
            written = yield from self._store.write(after)
            if isinstance(written, Written) or written.found is None or not polled:
                return
            after = structs.replace(after, fence=None, version=written.found.version)

    def _start_all(self, poll: Poll, note: PollNote, polled: Polled, now: float) -> Operation[PollNote]:
        started = refused = 0
        for item in _items(polled):
            try:
                yield from _start(poll, item)
                started += 1
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - one bad item must neither hold up the others nor be skipped silently
                log.error("%s: an item cannot be started, the cursor stays before it: %r", poll.name, error)
                refused += 1
        if refused:
            return structs.replace(note, started=note.started + started)
        note = structs.replace(note, cursor=_cursor(note, polled), started=note.started + started)
        return poll.polled(note, now)


def _corrected(poll: Poll, record: Record, note: PollNote, now: float) -> Replace:
    after = poll.corrected(note, now)
    due_in = max(0.0, after.next - now)
    return Replace(record.at, body_of(after), version=record.version, queue=poll.queue, due_in=due_in)


class _SourceBroke(Exception):
    """The value that the user's function returned cannot be read; the cause says why."""


def _place(poll: Poll) -> tuple[str, str]:
    """The same function declared again by a reloaded module is not a second one."""
    return poll.function.__module__, poll.function.__qualname__


def _polled(finding: Returned | Raised, name: str) -> Polled:
    if isinstance(finding, Raised):
        if not isinstance(finding.error, Exception):
            raise finding.error
        raise _SourceBroke from finding.error
    found = finding.value
    polled = found if isinstance(found, Polled) else Polled(found or ())
    if isinstance(polled.items, str | bytes | dict) or not isinstance(polled.items, Iterable):
        kind = type(polled.items).__name__
        raise _SourceBroke from TypeError(f"{name} returned {kind}; return a list of items, or Polled(items, cursor).")
    return polled


def _items(polled: Polled) -> Iterator[Any]:
    """A generator runs the user's code for each of its items."""
    try:
        yield from polled.items
    except Exception as error:
        raise _SourceBroke from error


def _cursor(note: PollNote, polled: Polled) -> Raw:
    try:
        return note.cursor if polled.cursor is None else Raw(msgspec.json.encode(polled.cursor))
    except Exception as error:
        raise _SourceBroke from error


def _start(poll: Poll, item: Any) -> Operation[None]:
    """The item is passed whole to a flow with one parameter, otherwise spread by name."""
    whole = len(poll.flow.inputs.names) == 1 or not isinstance(item, dict)
    try:
        yield from poll.flow.start((item,) if whole else (), {} if whole else item, from_json=True)
    except PayloadMismatch as error:
        log.warning("%s: an item came again with other contents and is left alone: %s", poll.name, error)
