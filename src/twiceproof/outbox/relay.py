"""Relay: publishes messages that are due, and records what their targets answered.

Any number of relays, on any number of machines, share one store and nothing else. What one was handed is hidden from
the others for `LEASE` seconds, and marked conditional on the version (of a lane: the fence) that it was handed: a
relay that was stopped for longer marks nothing. A message is marked after its confirmation, so that one is published
twice, with the same key, rather than never.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from msgspec import Struct, structs

from ..brokers.base import OutgoingMessage, Publication, Refused, Unconfirmed
from ..clock import Clock, jitter
from ..errors import CannotOpen, StoreError, StoreUnavailable
from ..operations import block
from ..records import Conflict, Lost, Record, Written
from ..stores.base import Store
from ..stores.notifications import SOON, queue_channel
from .lane_relay import Decisions, HeldLane, LanesDone, LockedLanes, finish_lanes, finish_locked, take_lanes
from .lanes import LANE
from .message import MESSAGE_KIND, PUBLISHING, Message, message_of, outgoing, queue_of_target
from .outcomes import (
    Decision,
    Left,
    Park,
    PutOff,
    Sent,
    decide,
    intent_write,
    is_interrupted,
    message_write,
    parked_without_answer,
    withdrawal,
)
from .pauses import LOOK_EVERY, PauseWatch, pause_target
from .routing import Publisher, Routing, Target

__all__ = ["LEASE", "Relay", "TargetRelay", "Tried"]


log = logging.getLogger("twiceproof.relay")

LEASE = 30.0  # seconds for which a message that was handed out is hidden from other relays
LOCKED_LOOK = 0.2  # seconds until a lane is tried again that a sender's transaction has locked
LOOK = 0.5  # seconds between two looks whether a thread has ended, so that signals are handled
FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0  # seconds, while the store or a target cannot be reached


class Tried(Struct):
    """A message that was handed out: what is known of it, and what becomes of it."""

    record: Record
    message: Message
    lane: HeldLane | None = None
    decision: Decision | None = None


class HandOut(Struct, frozen=True):
    """What a round is about: messages, and the lanes that some of them are in."""

    tried: list[Tried]
    lanes: list[HeldLane]

    def of_lanes(self) -> list[tuple[HeldLane, Decisions]]:
        return [
            (lane, {one.message.key: (one.record, one.message, one.decision) for one in self.tried if one.lane is lane})
            for lane in self.lanes
        ]


class Outage:
    """One side that cannot be reached: one log line when it goes away, one when it is back, growing pauses between."""

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._pause = FIRST_RETRY
        self.until = 0.0
        self.since: float | None = None

    def fail(self, why: object, asked: float | None = None) -> float:
        """Return after how many seconds to ask again. `asked`: what the other side wants at least."""
        now = self._clock.monotonic()
        if self.since is None:
            self.since, self._pause = now, FIRST_RETRY
            log.warning("%s cannot be reached, will try again: %s", self._what, why)
        pause = max(jitter(self._pause), asked or 0.0)
        self._pause = min(self._pause * 2, LONGEST_RETRY)
        self.until = now + pause
        return pause

    def end(self) -> None:
        if self.since is not None:
            log.warning("%s is back after %.0f s", self._what, self._clock.monotonic() - self.since)
            self.since = None

    @property
    def left(self) -> float:
        """Seconds until it is to be asked again."""
        return 0.0 if self.since is None else max(0.0, self.until - self._clock.monotonic())


class TargetRelay:
    """Publishes to one target. A target that is slow or away holds up no other."""

    def __init__(
        self,
        store: Store,
        target: Target,
        tenants: Callable[[], Iterable[str]],
        *,
        clock: Clock,
        roll: Callable[[], float],
        lease: float = LEASE,
    ) -> None:
        self.target = target
        self.counts: Counter[str] = Counter()
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
        self._busy: frozenset[str] = frozenset()  # queues that filled the last hand-out
        self._store_time = 0.0  # the store's time, less our own monotonic time
        self._watch = store.watch(())
        self.draining = False

    # -- living ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to drain. What is being published then is confirmed and marked first."""
        try:
            while not self.draining:
                pause = self.turn()
                if pause > 0 and not self.draining:
                    self._watch.wait(pause)
        finally:
            self.close()

    def drain(self) -> None:
        self.draining = True
        self._watch.wake()

    def close(self) -> None:
        if self._locked.unrecorded:
            with suppress(StoreError):
                block(finish_locked(self._store, self._locked))
        self._watch.close()
        broker, self._broker = self._broker, None
        if broker is not None and not self.target.shared:
            broker.close()

    def turn(self) -> float:
        """Publish what is due, once. Return in how many seconds to look again."""
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
        if found and self._pause.look():  # what was handed out is due again when it is no longer hidden
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
        """While the target is away, one message tells whether it is back."""
        return self.target.most if self._target_outage.since is None else 1

    # -- what is due -----------------------------------------------------------------------------

    def _hand_out(self, limit: int) -> tuple[list[Record], float | None]:
        """A tenant with a long backlog does not hold up the others: queues that filled the last hand-out come last."""
        queues = frozenset(queue_of_target(tenant, self.target.name) for tenant in self._tenants())
        self._watch.move(map(queue_channel, queues))
        found: list[Record] = []
        next_in: float | None = None
        for asked in (queues - self._busy, queues & self._busy):
            left = limit - len(found)
            if not asked or left <= 0:
                continue
            due = self._store.due(MESSAGE_KIND, queues=asked, limit=left, hide=self._lease).block()
            found += due.records
            self._store_time = due.now - self._clock.monotonic()
            if due.next_in is not None:
                next_in = due.next_in if next_in is None else min(next_in, due.next_in)
        self._busy = frozenset(record.queue for record in found) if len(found) >= limit > 1 else frozenset()
        return found, next_in

    def _prepare(self, records: Sequence[Record]) -> HandOut:
        """Read what was handed out; of lanes, their first messages. Left out is what another relay has by now."""
        lanes = [record for record in records if record.state == LANE]
        held: list[HeldLane] = []
        if lanes or self._locked.untaken:
            held = block(take_lanes(self._store, lanes, self._lease, self.target.most, self._locked))
        tried = [one for record in records if record.state != LANE and (one := _read(record, None)) is not None]
        for lane in held:
            tried += _first_of(lane)
        for one in tried:
            if is_interrupted(one.record):
                one.decision = parked_without_answer(one.message)
        self._record_intents([one for one in tried if one.message.on_unknown == "review" and one.decision is None])
        return HandOut(tried, held)

    def _record_intents(self, once: Sequence[Tried]) -> None:
        """Record first that those are about to be published which must not be published twice."""
        answers = self._store.write_each([[intent_write(one.record, self._lease)] for one in once]).block()
        for one, answer in zip(once, answers, strict=True):
            if isinstance(answer, Written):
                one.record = structs.replace(one.record, version=answer.version, state=PUBLISHING)
            else:
                one.decision = Left("it was changed meanwhile")

    # -- publishing ------------------------------------------------------------------------------

    def _publish(self, tried: Sequence[Tried]) -> None:
        """Publish in groups, for as long as what was handed out is surely hidden from others."""
        open_ones = [one for one in tried if one.decision is None]
        until = self._clock.monotonic() + self._lease - self.target.patience
        for first in range(0, len(open_ones), self.target.most):
            group = open_ones[first : first + self.target.most]
            if self._clock.monotonic() > until or self._target_outage.left:
                break  # the rest is due again when it is no longer hidden
            answers = self._ask([outgoing(one.record, one.message) for one in group])
            now = self._store_time + self._clock.monotonic()
            for one, answer in zip(group, answers, strict=True):
                if one.lane is not None and one.lane.stopped:
                    one.decision = Left("behind one that was not confirmed")
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
            return [Refused(f"{type(error).__name__}: {error}", away=True)] * len(messages)
        try:
            answers = self._broker.publish(messages, self.target.patience)
        except Exception as error:  # it may have been handed over
            log.exception("the target %s failed", self.target.name)
            return [Unconfirmed(f"{type(error).__name__}: {error}")] * len(messages)
        if len(answers) != len(messages):
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
        self.counts[{Sent: "published", PutOff: "refused", Park: "parked", Left: "away"}[type(decision)]] += 1
        if isinstance(answer, Unconfirmed):
            self.counts["unconfirmed"] += 1
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
        done = LanesDone()
        if out.lanes or self._locked.unrecorded:
            done = block(finish_lanes(self._store, out.of_lanes(), self.target.keep_sent, self._locked))
        self.counts["not marked"] += done.lost + sum(isinstance(answer, Conflict | Lost) for answer in answers)
        for answer in answers:
            if isinstance(answer, StoreError) and not isinstance(answer, CannotOpen):
                raise answer  # those messages are published again, with the same keys
        return done.more

    def _withdraw_intents(self, tried: Sequence[Tried]) -> None:
        """What was not handed over after all is pending again: left so, it would be taken for published."""
        unused = [
            one
            for one in tried
            if one.record.state == PUBLISHING and (one.decision is None or isinstance(one.decision, Left))
        ]
        if unused:
            self._store.write_each([[withdrawal(one.record)] for one in unused]).block()


def _first_of(lane: HeldLane) -> list[Tried]:
    """Return the messages of a lane that may be published in this round: none behind one that cannot be."""
    chosen: list[Tried] = []
    for record in lane.to_publish:
        one = _read(record, lane)
        chosen += [] if one is None else [one]
        if one is None or is_interrupted(record):
            break
    return chosen


def _read(record: Record, lane: HeldLane | None) -> Tried | None:
    try:
        return Tried(record, message_of(record), lane)
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
    ) -> None:
        self.targets = [
            TargetRelay(store, target, tenants, clock=clock, roll=roll) for target in routing.targets.values()
        ]
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self._draining = self._stopping = False

    def start(self) -> None:
        """Publish in the background until `drain`."""
        for relay in self.targets:
            thread = threading.Thread(target=relay.run, name=f"twiceproof-relay-{relay.target.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """Take nothing new. From any thread, and from signal handlers."""
        self._draining = True
        for relay in self.targets:
            relay.drain()

    def stop(self) -> None:
        """Wait for nothing any more: what is being published is published again by another relay, with its key."""
        self._stopping = True
        self.drain()

    def join(self, patience: float) -> int:
        """Wait for what is being published. Return how many targets have not ended."""
        until = self._clock.monotonic() + patience
        for thread in self._threads:
            while thread.is_alive() and not self._stopping and (left := until - self._clock.monotonic()) > 0:
                thread.join(min(left, LOOK))
        return sum(thread.is_alive() for thread in self._threads)

    def run(self, *, until_idle: bool = False, patience: float = 30.0) -> int:
        """Serve until told to drain, or until nothing is due. Return how many messages were published."""
        if until_idle:
            for relay in self.targets:
                while relay.turn() <= 0 and not relay.draining:
                    pass
                relay.close()
            return self.published
        self.start()
        while not self._draining and any(thread.is_alive() for thread in self._threads):
            self._threads[-1].join(LOOK)
        self.join(patience)
        return self.published

    def counts(self) -> dict[str, dict[str, int]]:
        return {relay.target.name: dict(relay.counts) for relay in self.targets}

    @property
    def published(self) -> int:
        return sum(relay.counts["published"] for relay in self.targets)
