"""Relay: publishes messages that are due, and records what their targets answered.

Any number of relays, on any number of machines, share one store and nothing else. What one relay was handed is hidden
from the others for `LEASE` seconds. Its outcome is recorded only at the version (for a lane: the fence) that was handed
out, so a relay that was suspended for longer records nothing. A message is marked as sent after its confirmation: after
a crash it is published twice, with the same key, rather than never.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from msgspec import Struct, structs

from ..brokers.base import OutgoingMessage, Publication, Refused, Unconfirmed
from ..clock import Clock
from ..errors import CannotOpen, StoreError, StoreUnavailable, TwiceproofError
from ..operations import block
from ..records import Conflict, Lost, Record, Written
from ..stores.base import Store
from ..stores.notifications import SOON, queue_channel
from ..threads import ThreadGroup
from .lane_relay import Decisions, HeldLane, LaneProgress, LockedLanes, finish_lanes, finish_locked, take_lanes
from .lanes import LANE
from .message import MESSAGE_KIND, PUBLISHING, Message, message_of, outgoing, queue_of_target
from .outcomes import (
    Decision,
    LeaveDue,
    Park,
    Postpone,
    Sent,
    decide,
    intent_write,
    is_interrupted,
    message_write,
    parked_without_answer,
    withdrawal,
)
from .pauses import LOOK_EVERY, Outage, PauseWatch, ReasonLog, pause_target
from .routing import Publisher, Routing, Target

__all__ = ["LEASE", "Relay", "TargetRelay", "Tried"]


log = logging.getLogger("twiceproof.relay")

LEASE = 30.0  # seconds for which a message that was handed out is hidden from other relays
FAULT_PAUSE = 10.0  # seconds until the next try after an error that nobody expected
LOCKED_LOOK = 0.2  # seconds until the next try of a lane that a sender's transaction has locked
LOOK = 0.5  # seconds between two checks whether a thread has ended: signals are handled in between


class Tried(Struct):
    """A message that was handed out: what is known about it, and what was decided."""

    record: Record
    message: Message
    outgoing: OutgoingMessage
    lane: HeldLane | None = None
    decision: Decision | None = None


class HandOut(Struct, frozen=True):
    """What one round works on: messages, and the lanes that some of them are in."""

    tried: list[Tried]
    lanes: list[HeldLane]

    def of_lanes(self) -> list[tuple[HeldLane, Decisions]]:
        return [
            (lane, {one.message.key: (one.record, one.message, one.decision) for one in self.tried if one.lane is lane})
            for lane in self.lanes
        ]


class TargetRelay:
    """Publishes to one target. A slow or unreachable target delays no other."""

    def __init__(
        self,
        store: Store,
        target: Target,
        tenants: Callable[[], Iterable[str]],
        *,
        clock: Clock,
        roll: Callable[[], float],
        lease: float = LEASE,
        at_store_time: Callable[[float], None] = lambda now: None,
    ) -> None:
        self.target = target
        self._at_store_time = at_store_time  # called with the store's time at each look
        self.counts: Counter[str] = Counter()
        self.calls, self.seconds = 0, 0.0  # of publishing, until the target had answered about all
        self.found = False  # whether the last look found any
        self.next_in: float | None = None  # seconds from the last look until a message is due; None if none waits
        self._store = store
        self._tenants = tenants
        self._clock = clock
        self._roll = roll
        self._lease = max(lease, 2 * target.patience + 10.0) if lease == LEASE else lease
        self._broker: Publisher | None = None
        self._target_outage = Outage(f"the target {target.name}", clock)
        self._store_outage = Outage("the store", clock)
        self._locked = LockedLanes()
        self._pause = PauseWatch(store, target.name, clock.monotonic)
        self._refusals = ReasonLog()
        self._busy: frozenset[str] = frozenset()  # queues that filled the last hand-out
        self._handed_out_at = 0.0  # when the last hand-out was requested: its messages are hidden from then on or later
        self._store_time = 0.0  # the store's time minus our own monotonic time
        self._watch = store.watch(())
        self.draining = False

    # -- living ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Publish until told to drain. Messages that are under way then are confirmed and recorded first."""
        try:
            while not self.draining:
                pause = self._run_once_or_log()
                if pause > 0 and not self.draining:
                    self._watch.wait(pause)
        finally:
            self.close()

    def drain(self) -> None:
        self.draining = True
        self._watch.wake()

    def close(self) -> None:
        if self._locked:
            with suppress(StoreError):
                block(finish_locked(self._store, self._locked))
        self._watch.close()
        broker, self._broker = self._broker, None
        if broker is not None and not self.target.shared:
            broker.close()

    def _run_once_or_log(self) -> float:
        """A fault of ours or of a driver must not end the thread: nothing would be published until a restart."""
        try:
            return self.run_once()
        except Exception:
            log.exception("publishing to %s failed, will try again", self.target.name)
            return FAULT_PAUSE

    def run_once(self) -> float:
        """Publish what is due, once. Return after how many seconds to look again."""
        self.found = False
        if self._target_outage.left:
            return self._target_outage.left
        try:
            pause = self._round()
        except StoreError as error:
            if isinstance(error, StoreUnavailable) and error.data.get("closed"):
                self.drain()
                return 0.0
            return self._store_outage.fail(error)
        self._store_outage.end()
        return self._target_outage.left or pause

    def _round(self) -> float:
        if self._pause.first and self._pause.look():
            return LOOK_EVERY
        limit = self._limit
        found, next_in = self._hand_out(limit)
        if found and self._pause.look():  # what was handed out becomes due again when its lease is over
            return LOOK_EVERY
        more = False
        if found or self._locked:
            out = self._prepare(found)
            self._publish(out.tried)
            more = self._record(out)
            self._locked.look(self._clock.monotonic())
        if more or len(found) >= limit or (found and next_in is not None and next_in <= 0):
            return 0.0
        soon = LOCKED_LOOK if self._locked else SOON
        return soon if next_in is None else min(soon, max(0.01, next_in))

    @property
    def _limit(self) -> int:
        """While the target cannot be reached, one message is enough to find out whether it is back."""
        return self.target.most if self._target_outage.since is None else 1

    @property
    def _now(self) -> float:
        """The store's time, by our own clock since the last look."""
        return self._store_time + self._clock.monotonic()

    # -- what is due -----------------------------------------------------------------------------

    def _hand_out(self, limit: int) -> tuple[list[Record], float | None]:
        """A tenant with a long backlog does not hold up the others: queues that filled the last hand-out come last."""
        queues = frozenset(queue_of_target(tenant, self.target.name) for tenant in self._tenants())
        self._watch.move(map(queue_channel, queues))
        self._handed_out_at = self._clock.monotonic()
        found: list[Record] = []
        next_in: float | None = None
        for asked in (queues - self._busy, queues & self._busy):
            left = limit - len(found)
            if not asked or left <= 0:
                continue
            due = self._store.due(MESSAGE_KIND, queues=asked, limit=left, hide=self._lease).block()
            found += due.records
            self._store_time = due.now - self._clock.monotonic()
            self._at_store_time(due.now)
            if due.next_in is not None:
                next_in = due.next_in if next_in is None else min(next_in, due.next_in)
        self.found, self.next_in = bool(found), next_in
        self._busy = frozenset(record.queue for record in found) if len(found) >= limit > 1 else frozenset()
        return found, next_in

    def _prepare(self, records: Sequence[Record]) -> HandOut:
        """Read what was handed out; for a lane, its first messages. Leaves out what another relay has taken by now."""
        lanes = [record for record in records if record.state == LANE]
        held: list[HeldLane] = []
        if lanes or self._locked.untaken:
            held = block(take_lanes(self._store, lanes, self._lease, self.target.most, self._locked))
        tried = [one for record in records if record.state != LANE and (one := _read(record, None)) is not None]
        for lane in held:
            tried += _first_of(lane)
        for one in tried:
            if is_interrupted(one.record):
                one.decision = parked_without_answer(one.message, self._now)
        self._record_intents([one for one in tried if one.message.on_unknown == "review" and one.decision is None])
        return HandOut(tried, held)

    def _record_intents(self, once: Sequence[Tried]) -> None:
        """Before publishing, record an intent for the messages that must not be published twice."""
        answers = self._store.write_each([[intent_write(one.record, self._lease)] for one in once]).block()
        for one, answer in zip(once, answers, strict=True):
            if isinstance(answer, Written):
                one.record = structs.replace(one.record, version=answer.version, state=PUBLISHING)
            else:
                one.decision = LeaveDue("it was changed meanwhile")

    # -- publishing ------------------------------------------------------------------------------

    def _publish(self, tried: Sequence[Tried]) -> None:
        """Publish in groups, while the hand-out is certainly still hidden from other relays."""
        open_ones = [one for one in tried if one.decision is None]
        until = self._handed_out_at + self._lease - self.target.patience
        for first in range(0, len(open_ones), self.target.most):
            group = open_ones[first : first + self.target.most]
            if self._clock.monotonic() > until or self._target_outage.left:
                break  # the rest becomes due again when its lease is over
            answers = self._ask([one.outgoing for one in group])
            now = self._now
            for one, answer in zip(group, answers, strict=True):
                if one.lane is not None and one.lane.stopped:
                    one.decision = LeaveDue("an earlier message of its order key was not confirmed")
                    continue
                one.decision = decide(one.message, answer, self.target.retry, now, self._roll)
                self._count(answer, one.decision)
                if one.lane is not None:
                    one.lane.stopped = not isinstance(one.decision, Sent)
            self._watch_target(answers)

    def _ask(self, messages: list[OutgoingMessage]) -> Sequence[Publication]:
        try:
            if self._broker is None:
                self._broker = self.target.open()
        except Exception as error:  # noqa: BLE001 - nothing was handed over
            kind = "" if isinstance(error, TwiceproofError) else f"{type(error).__name__}: "
            return [Refused(f"{kind}{error}", away=True)] * len(messages)
        began = self._clock.monotonic()
        try:
            answers = self._broker.publish(messages, self.target.patience)
        except Exception as error:  # it may have been handed over
            log.exception("the target %s failed", self.target.name)
            return [Unconfirmed(f"{type(error).__name__}: {error}")] * len(messages)
        finally:
            self.calls += 1
            self.seconds += self._clock.monotonic() - began
        if len(answers) != len(messages) or not all(isinstance(answer, Publication) for answer in answers):
            return [Unconfirmed("the target did not answer about every message")] * len(messages)
        return answers

    def _watch_target(self, answers: Sequence[Publication]) -> None:
        away = [answer for answer in answers if isinstance(answer, Refused) and answer.away]
        gone = next((answer for answer in away if answer.gone), None)
        if gone is not None:
            self._pause_target(gone.why)
            return
        if len(away) == len(answers):
            self._target_outage.fail(away[0].why, away[0].retry_after)
        elif not away:
            self._target_outage.end()

    def _pause_target(self, why: str) -> None:
        name = self.target.name
        block(pause_target(self._store, name, by="relay", why=why))
        self._pause.forget()
        log.error("paused the target %s: %s; publish to it again with: twiceproof messages resume %s", name, why, name)

    def _count(self, answer: Publication, decision: Decision) -> None:
        self.counts[{Sent: "published", Postpone: "refused", Park: "parked", LeaveDue: "away"}[type(decision)]] += 1
        if isinstance(answer, Unconfirmed):
            self.counts["unconfirmed"] += 1
        if isinstance(decision, Postpone):
            message = decision.message
            self._refusals.tell(f"could not publish {message.key} to {message.target}", message.why)
        if isinstance(decision, Park):
            message = decision.message
            log.warning("parked the message %s to %s: %s", message.key, message.target, message.why)

    # -- recording -------------------------------------------------------------------------------

    def _record(self, out: HandOut) -> bool:
        """Return whether lanes have more to publish."""
        self._withdraw_intents(out.tried)
        alone = [one for one in out.tried if one.lane is None and one.decision is not None]
        writes = [message_write(one.record, one.decision, self.target.keep_sent) for one in alone if one.decision]
        answers = self._store.write_each([[write] for write in writes if write is not None]).block()
        done = LaneProgress()
        if out.lanes or self._locked.unrecorded:
            done = block(finish_lanes(self._store, out.of_lanes(), self.target.keep_sent, self._locked))
        self.counts["not marked"] += done.lost + sum(isinstance(answer, Conflict | Lost) for answer in answers)
        for answer in answers:
            if isinstance(answer, StoreError) and not isinstance(answer, CannotOpen):
                raise answer  # those messages are published again, with the same keys
        return done.more

    def _withdraw_intents(self, tried: Sequence[Tried]) -> None:
        """Take back the intents of messages that were not handed over: the next relay would take them for possibly
        published.
        """
        unused = [
            one
            for one in tried
            if one.record.state == PUBLISHING and (one.decision is None or isinstance(one.decision, LeaveDue))
        ]
        if unused:
            self._store.write_each([[withdrawal(one.record)] for one in unused]).block()


def _first_of(lane: HeldLane) -> list[Tried]:
    """Return the messages of a lane that may be published in this round: all up to the first one that may not."""
    chosen: list[Tried] = []
    for record in lane.to_publish:
        one = _read(record, lane)
        chosen += [] if one is None else [one]
        if one is None or is_interrupted(record):
            break
    return chosen


def _read(record: Record, lane: HeldLane | None) -> Tried | None:
    try:
        message = message_of(record)
        return Tried(record, message, outgoing(record, message), lane)
    except CannotOpen as error:
        log.error("left lying: %s", error)
        return None


class Relay:
    """A relay for each target of an app, each on a thread of its own."""

    def __init__(
        self,
        store: Store,
        routing: Routing,
        tenants: Callable[[], Iterable[str]],
        *,
        clock: Clock,
        roll: Callable[[], float],
        at_store_time: Callable[[float], None] = lambda now: None,
    ) -> None:
        self.targets = [
            TargetRelay(store, target, tenants, clock=clock, roll=roll, at_store_time=at_store_time)
            for target in routing.targets.values()
        ]
        self._clock = clock
        self._threads = ThreadGroup()
        self._draining = self._stopping = False

    def start(self) -> None:
        """Publish in the background until `drain`."""
        for relay in self.targets:
            self._threads.start(relay.run, f"twiceproof-relay-{relay.target.name}")

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """Take nothing new. May be called from any thread and from signal handlers."""
        self._draining = True
        for relay in self.targets:
            relay.drain()

    def stop(self) -> None:
        """Stop without waiting: what is being published now is published again by another relay, with the same key."""
        self._stopping = True
        self.drain()

    def join(self, patience: float) -> int:
        """Wait for the messages under way. Return how many targets have not finished."""
        until = self._clock.monotonic() + patience
        while True:
            left = 0.0 if self._stopping else max(0.0, until - self._clock.monotonic())
            alive = self._threads.join(min(LOOK, left))
            if not alive or not left:
                return alive

    def run(self, *, until_idle: bool = False, patience: float = 30.0) -> int:
        """Serve until told to drain, or until nothing is due. Return how many messages were published."""
        if until_idle:
            for relay in self.targets:
                while (relay.run_once() <= 0 or relay.found) and not relay.draining:
                    pass
                relay.close()
            return self.published
        self.start()
        while not self._draining and self._threads.join(LOOK):
            pass
        self.join(patience)
        return self.published

    def counts(self) -> dict[str, dict[str, int]]:
        return {relay.target.name: dict(relay.counts) for relay in self.targets}

    @property
    def next_in(self) -> float | None:
        """Seconds until the next waiting message is due: one that is postponed, delayed, or was handed to a relay that
        was killed.
        """
        return min((relay.next_in for relay in self.targets if relay.next_in is not None), default=None)

    @property
    def published(self) -> int:
        return sum(relay.counts["published"] for relay in self.targets)
