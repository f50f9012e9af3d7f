"""The relay's side of lanes: taking them with a fence, reading their first messages, and recording how it went.

A relay that was suspended for too long has lost its fence, and its writes are refused. A sender's write keeps the fence
and changes the version; an empty lane is removed only at the version that the relay has read.

A sender's transaction locks its lane until it ends. A locked lane is left for the next round (`LockedLanes`), so that a
transaction which stays open delays its own lane and no other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..errors import StoreUnavailable
from ..operations import Operation
from ..records import Conflict, Outcome, Record, Remove, Replace, Write, Written
from ..stores.base import Store
from .lanes import HELD_LANE, LANE, TICKET_KIND, message_in_lane
from .message import DROPPED, PARKED, SENT, Message
from .outcomes import Decision, Park, Postpone, Sent, message_write

__all__ = ["Decisions", "HeldLane", "LaneProgress", "LockedLanes", "finish_lanes", "finish_locked", "take_lanes"]


log = logging.getLogger("twiceproof.relay")


SOON_AGAIN = 0.5  # seconds until the next try of a lane whose target could not be reached

LOCKED_PATIENCE = 0.05  # seconds to wait for a locked lane: the commits of most senders take less
LAST_PATIENCE = 2.0  # seconds, when the relay ends
LONG_LOCKED = 5.0  # seconds after which a locked lane is named in the log

UNREADABLE = 60.0  # the same for a lane whose first message cannot be decrypted: the keys may be configured meanwhile


class HeldLane(Struct, eq=False):
    """A lane that this relay has taken: its record as handed out, the fence and version of the take, and what was read.

    `found` are the messages of the tickets, by key; None: the message is gone. `whole`: these are all tickets of the
    lane.
    """

    record: Record
    fence: int
    version: str
    tickets: Sequence[Record] = ()
    whole: bool = False
    found: dict[str, Record | None] = {}
    stopped: bool = False  # one of its messages was not confirmed, and the later ones were not handed over

    @property
    def to_publish(self) -> list[Record]:
        """The messages in order, up to the first that waits for review."""
        chosen: list[Record] = []
        for ticket in self.tickets:
            record = self.found.get(ticket.body)
            if record is not None and record.state == PARKED:
                break
            if record is not None and not _is_over(record):
                chosen.append(record)
        return chosen


def _is_over(record: Record | None) -> bool:
    """Whether a message need not be published: it was published, a person dropped it, or it is gone."""
    return record is None or record.state in (SENT, DROPPED)


class LockedLanes:
    """Lanes that senders' open transactions have locked: those still to be taken, and those to be recorded."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # by space
        self._told: set[str] = set()
        self.untaken: dict[str, Record] = {}
        self.unrecorded: dict[str, LaneResult] = {}

    def __bool__(self) -> bool:
        return bool(self.untaken or self.unrecorded)

    def look(self, now: float) -> None:
        """Name those in the log that have been locked for long, once each. `now` is a monotonic time."""
        locked = self.untaken.keys() | self.unrecorded.keys()
        self._since = {space: self._since.get(space, now) for space in locked}
        self._told &= locked
        for space, since in self._since.items():
            if now - since >= LONG_LOCKED and space not in self._told:
                self._told.add(space)
                tenant, _, target, order = space.split("/", 3)
                log.warning(
                    "a transaction has locked the order key %s of %s (tenant %s) for %.0f s: its messages wait until "
                    "the transaction ends; look for the sender that keeps it open",
                    order,
                    target,
                    tenant,
                    now - since,
                )


def _is_locked(answer: object) -> bool:
    return isinstance(answer, StoreUnavailable) and bool(answer.data.get("held")) and not answer.data.get("unsure")


# -- taking --------------------------------------------------------------------------------------


def take_lanes(
    store: Store, lanes: Sequence[Record], lease: float, most: int, locked: LockedLanes
) -> Operation[list[HeldLane]]:
    """Take lanes that were handed out, and read their first messages. A few commits and reads for all of them."""
    again, locked.untaken = locked.untaken, {}
    held = yield from _taken(store, list(again.values()), lease, 0.0, locked)
    held += yield from _taken(
        store, [one for one in lanes if one.at.space not in again], lease, LOCKED_PATIENCE, locked
    )
    if held:
        yield from _read_tickets(store, held, max(1, min(most // len(held), (store.batch_limit - 1) // 2)))
        yield from _read_messages(store, held)
    return held


def _taken(
    store: Store, lanes: Sequence[Record], lease: float, patience: float, locked: LockedLanes
) -> Operation[list[HeldLane]]:
    held: list[HeldLane] = []
    left = list(lanes)
    while left:
        takes = [
            [Replace(lane.at, None, LANE, version=lane.version, draw=True, queue=lane.queue, due_in=lease)]
            for lane in left
        ]
        answers = yield from store.write_each(takes, patience=patience)
        pairs = list(zip(left, answers, strict=True))
        locked.untaken.update({lane.at.space: lane for lane, one in pairs if _is_locked(one)})
        held += [HeldLane(lane, one.fence, one.version) for lane, one in pairs if isinstance(one, Written)]
        left = [found for lane, one in pairs if (found := _still_ours(lane, one)) is not None]
    return held


def _still_ours(lane: Record, answer: Outcome | Exception) -> Record | None:
    """After a refused take: the lane as it is now, if only a sender has written to it since it was handed out (another
    relay would have drawn a new fence).

    The lane is still hidden from other relays, so if this one left it, it would wait until its hand-out expires.
    """
    found = answer.found if isinstance(answer, Conflict) else None
    return found if found is not None and found.fence == lane.fence and found.state == LANE else None


def _read_tickets(store: Store, held: Sequence[HeldLane], each: int) -> Operation[None]:
    found = yield from store.beside([lane.record.at.space for lane in held], (TICKET_KIND,), limit=each)
    by_space: dict[str, list[Record]] = {}
    for ticket in sorted(found, key=lambda one: one.at.key):
        by_space.setdefault(ticket.at.space, []).append(ticket)
    for lane in held:
        tickets = by_space.get(lane.record.at.space, [])
        lane.tickets, lane.whole = tickets[:each], len(tickets) < each


def _read_messages(store: Store, held: Sequence[HeldLane]) -> Operation[None]:
    asked = [(lane, ticket.body) for lane in held for ticket in lane.tickets]
    answers = yield from store.read_each([message_in_lane(lane.record.at, key) for lane, key in asked])
    for lane in held:
        lane.found = {}
    for (lane, key), answer in zip(asked, answers, strict=True):
        lane.found[key] = answer.record


# -- recording -----------------------------------------------------------------------------------


class LaneResult(Struct, frozen=True):
    """What a round did to a lane: the messages and tickets to write, and the lane's next state and time.

    `empty`: nothing is left in it, as far as this relay knows.
    """

    lane: HeldLane
    writes: list[Write]
    state: str = LANE
    due_in: float | None = 0.0
    empty: bool = False

    def batch(self, *, removing: bool) -> list[Write]:
        at = self.lane.record.at
        if removing and self.empty:
            return [Remove(at, version=self.lane.version), *self.writes]
        queue = self.lane.record.queue
        kept = Replace(at, None, self.state, fence=self.lane.fence, queue=queue, due_in=self.due_in)
        return [kept, *self.writes]


class LaneProgress(Struct, frozen=True):
    """How many lanes another relay has taken in the meantime, and whether there is more to publish right now."""

    lost: int = 0
    more: bool = False


Attempted = tuple[Record, Message, Decision | None]  # a message's record as it is now, and what was decided
Decisions = Mapping[str, Attempted]  # by key


def finish_lanes(
    store: Store, done: Sequence[tuple[HeldLane, Decisions]], keep_sent: float, locked: LockedLanes
) -> Operation[LaneProgress]:
    """Record the outcomes, with one batch for each lane. Lanes that were locked in an earlier round come first."""
    late, locked.unrecorded = list(locked.unrecorded.values()), {}
    before = yield from _record_results(store, late, 0.0, locked)
    results = [_result(lane, decisions, keep_sent) for lane, decisions in done]
    now = yield from _record_results(store, results, LOCKED_PATIENCE, locked)
    return LaneProgress(before.lost + now.lost, before.more or now.more)


def finish_locked(store: Store, locked: LockedLanes) -> Operation[None]:
    """Before the relay ends: wait a little longer for outcomes that could not be recorded yet. Their messages would
    otherwise be published again. Lanes that were handed out and could not be taken are returned; they would otherwise
    be hidden from other relays until the hand-out expires.
    """
    late, locked.unrecorded = list(locked.unrecorded.values()), {}
    yield from _record_results(store, late, LAST_PATIENCE, locked)
    left, locked.untaken = list(locked.untaken.values()), {}
    while left:
        due = [[Replace(one.at, None, LANE, version=one.version, queue=one.queue, due_in=0.0)] for one in left]
        answers = yield from store.write_each(due, patience=LAST_PATIENCE)
        pairs = zip(left, answers, strict=True)
        left = [found for lane, answer in pairs if (found := _still_ours(lane, answer)) is not None]


def _record_results(
    store: Store, results: Sequence[LaneResult], patience: float, locked: LockedLanes
) -> Operation[LaneProgress]:
    if not results:
        return LaneProgress()
    answers = yield from store.write_each([result.batch(removing=True) for result in results], patience=patience)
    refused = _refused(results, answers, locked)
    again = [result for result in refused if result.empty]  # a message was added meanwhile: the lane stays
    lost = len(refused) - len(again)
    if again:
        answers = yield from store.write_each([result.batch(removing=False) for result in again], patience=patience)
        lost += len(_refused(again, answers, locked))
    return LaneProgress(lost, bool(again) or any(result.due_in == 0 and not result.empty for result in results))


def _refused(
    results: Sequence[LaneResult], answers: Sequence[Outcome | Exception], locked: LockedLanes
) -> list[LaneResult]:
    """Return the lanes that were not written, and keep the locked ones for later.

    An error is raised only after all answers have been read: its lanes become due again.
    """
    pairs = list(zip(results, answers, strict=True))
    locked.unrecorded.update({one.lane.record.at.space: one for one, answer in pairs if _is_locked(answer)})
    for answer in answers:
        if isinstance(answer, Exception) and not _is_locked(answer):
            raise answer
    return [one for one, answer in pairs if not isinstance(answer, Written) and not _is_locked(answer)]


def _result(lane: HeldLane, decisions: Decisions, keep_sent: float) -> LaneResult:
    """Go through the tickets in order, up to the first message that was not published."""
    writes: list[Write] = []
    for ticket in lane.tickets:
        if not _is_over(lane.found.get(ticket.body)):
            stopped = _next(lane, writes, decisions.get(ticket.body), lane.found[ticket.body], keep_sent)
            if stopped is not None:
                return stopped
        writes.append(Remove(ticket.at, version=ticket.version))
        if _was_skipped(decisions.get(ticket.body)):  # later messages were not published in this round
            return LaneResult(lane, writes)
    return LaneResult(lane, writes, empty=lane.whole)


def _next(
    lane: HeldLane, writes: list[Write], tried: Attempted | None, found: Record | None, keep_sent: float
) -> LaneResult | None:
    """Add what is recorded about one message. None: the lane continues after it."""
    if found is not None and found.state == PARKED:
        return LaneResult(lane, writes, HELD_LANE, None)
    if tried is None:  # it cannot be read
        return LaneResult(lane, writes, due_in=UNREADABLE)
    record, _, decision = tried
    write = None if decision is None else message_write(record, decision, keep_sent)
    writes += [] if write is None else [write]
    if isinstance(decision, Postpone):
        return LaneResult(lane, writes, due_in=decision.seconds)
    if isinstance(decision, Park) and not _was_skipped(tried):
        return LaneResult(lane, writes, HELD_LANE, None)
    return None if isinstance(decision, Sent | Park) else LaneResult(lane, writes, due_in=SOON_AGAIN)


def _was_skipped(tried: Attempted | None) -> bool:
    return tried is not None and isinstance(tried[2], Park) and tried[1].on_parked == "skip"
