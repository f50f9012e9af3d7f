"""Receives as a member of a consumer group, and commits an offset only when everything before it is settled.

Kafka keeps one number for each partition: everything before it is done. A delivery that is settled after an open one is
remembered in memory only, and is delivered again if this process ends before the open one is settled. A thread polls
all the time, so that rebalances are answered while deliveries are being processed.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ..clock import Clock
from ..errors import BrokerUnavailable
from .base import QueueDelivery
from .kafka_client import ANSWER_SECONDS, MISSING, delivery_of, describe, topic_problem, unreachable

__all__ = ["GroupMember", "HeldRecord"]

POLL_SECONDS = 0.05  # after which settlements are committed, at the latest
REVOKE_SECONDS = 5.0  # for which a revoked partition waits for the deliveries that are being processed
LEAVE_SECONDS = 2.0  # for giving partitions back
COMMIT_AGAIN = 0.5  # seconds after which a commit that failed is tried again
DENIED = {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.INVALID_GROUP_ID}
SETTINGS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    "partition.assignment.strategy": "roundrobin",  # librdkafka's cooperative-sticky crashes in a storm of members
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1_000,
}


@dataclass(eq=False)
class _Partition:
    """What was fetched of a partition while it is assigned to us. `is_ours` becomes False with a rebalance, and stays
    so.
    """

    number: int
    is_ours: bool = True
    asked: int = -1  # the offset of the last commit
    _end: int = -1  # after the last that was fetched
    _fetched: deque[int] = field(default_factory=deque)  # not yet below the watermark
    _settled: set[int] = field(default_factory=set)
    held: dict[int, HeldRecord] = field(default_factory=dict)  # given to the receiver, not settled

    def fetch(self, offset: int) -> None:
        self._fetched.append(offset)
        self._end = offset + 1

    def settle(self, offset: int) -> None:
        self._settled.add(offset)
        while self._fetched and self._fetched[0] in self._settled:
            self._settled.remove(self._fetched.popleft())

    @property
    def watermark(self) -> int:
        """The offset before which everything is settled."""
        return self._fetched[0] if self._fetched else self._end

    @property
    def kept(self) -> int:
        return len(self._fetched)


@dataclass(eq=False)
class HeldRecord:
    """One hand-over of a record."""

    member: GroupMember
    partition: _Partition
    record: Any
    times: int = 1
    is_settling: bool = False  # it has its word; held until that is carried out, so that a rebalance waits for it


class GroupMember:
    """One member of one group, for one topic. `place` is `TOPIC/GROUP`.

    `find_topic` asks the cluster with another client than the consumer: confluent-kafka lets one call at a time into a
    client, so that a second caller may wait for ever beside a thread that polls all the time.
    """

    def __init__(
        self,
        url: str,
        settings: dict[str, Any],
        place: str,
        prefetch: int,
        clock: Clock,
        find_topic: Callable[[str], Any],
    ) -> None:
        self.topic, _, self._group = place.rpartition("/")
        self._url, self._place, self._prefetch, self._clock = url, place, prefetch, clock
        self._find_topic = find_topic
        self._changed = threading.Condition()
        self._partitions: dict[int, _Partition] = {}
        self._ready: deque[HeldRecord] = deque()
        self._later: list[tuple[float, int, HeldRecord]] = []
        self._numbers = itertools.count()
        self._stopped = self._joined = self._is_paused = self._in_doubt = False
        self._denied: KafkaError | None = None
        self._commit_after = 0.0
        own = {"group.id": self._group, "error_cb": self._on_error, "on_commit": self._on_commit}
        self._consumer = Consumer({**settings, **SETTINGS, **own})
        self._thread = threading.Thread(target=self._run, name=f"twiceproof-kafka-{place}", daemon=True)

    # -- by the receiver -----------------------------------------------------------------------

    def start(self) -> None:
        """Raises BrokerUnavailable where the topic or the cluster is not there."""
        self._look()
        self._consumer.subscribe(
            [self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._joined, ANSWER_SECONDS)

    def receive(self, limit: int, wait: float) -> list[QueueDelivery]:
        end = self._clock.monotonic() + wait
        with self._changed:
            while not (found := self._take(limit)):
                left = end - self._clock.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, POLL_SECONDS))
        if not found and self._in_doubt:
            self._look()
        return [delivery_of(self._place, hold.record, hold, hold.times) for hold in found]

    def take_back(self, hold: HeldRecord) -> bool:
        """Return whether the hand-over may still be settled. If so, `finish` or `deliver_again` follows."""
        with self._changed:
            is_held = hold.partition.is_ours and hold.partition.held.get(hold.record.offset()) is hold
            is_open = is_held and not hold.is_settling
            hold.is_settling = True
            return is_open

    def finish(self, hold: HeldRecord) -> None:
        with self._changed:
            hold.partition.held.pop(hold.record.offset(), None)
            hold.partition.settle(hold.record.offset())
            self._changed.notify_all()

    def deliver_again(self, hold: HeldRecord, after: float) -> None:
        """From memory. Its offset is not committed, so that it comes again after a restart, too."""
        again = HeldRecord(self, hold.partition, hold.record, hold.times + 1)
        with self._changed:
            hold.partition.held.pop(hold.record.offset(), None)
            heapq.heappush(self._later, (self._clock.monotonic() + after, next(self._numbers), again))
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Commit and leave the group; on a silent network the thread continues alone with that."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is None:
            self._consumer.close()
        else:
            self._thread.join(seconds)
        with self._changed:
            self._drop(list(self._partitions))

    def _take(self, limit: int) -> list[HeldRecord]:
        now = self._clock.monotonic()
        found: list[HeldRecord] = []
        while len(found) < limit and (hold := self._next(now)):
            if hold.partition.is_ours:
                hold.partition.held[hold.record.offset()] = hold
                found.append(hold)
        return found

    def _next(self, now: float) -> HeldRecord | None:
        if self._later and self._later[0][0] <= now:
            return heapq.heappop(self._later)[2]
        return self._ready.popleft() if self._ready else None

    def _look(self) -> None:
        """Ask for the topic. Raises BrokerUnavailable if it, or the group, cannot be used."""
        why = unreachable(self._url, ANSWER_SECONDS)
        if why is not None:
            raise BrokerUnavailable(why, missing=False)
        try:
            found = self._find_topic(self.topic)
        except KafkaException as error:
            raise BrokerUnavailable(describe(self._url, error), missing=False) from None
        problem = topic_problem(self.topic, found.error)
        if problem is not None:
            raise BrokerUnavailable(problem, missing=found.error.code() in MISSING)
        self._in_doubt, denied, self._denied = False, self._denied, None
        if denied is not None:
            text = f"The group {self._group!r} cannot be used ({denied.name()}); permit this user to read with it."
            raise BrokerUnavailable(text, missing=False)

    # -- by the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped:
            try:
                first = self._consumer.poll(POLL_SECONDS)
                if first is not None:
                    self._keep([first, *self._consumer.consume(self._prefetch, 0.0)])
            except KafkaException:
                self._in_doubt = True
            self._pause_or_resume()
            if self._clock.monotonic() >= self._commit_after:
                self._commit_watermarks()
        self._commit_now(list(self._partitions.values()))
        with contextlib.suppress(KafkaException, RuntimeError):
            self._leave()
            self._consumer.close()

    def _leave(self) -> None:
        """Give the partitions back before closing: librdkafka can wait for ever, holding Python's lock, when it has to
        report a rebalance while it closes.
        """
        self._consumer.unsubscribe()
        until = self._clock.monotonic() + LEAVE_SECONDS
        while True:
            self._consumer.poll(POLL_SECONDS)
            if not self._partitions or self._clock.monotonic() >= until:
                return

    def _keep(self, records: Sequence[Any]) -> None:
        with self._changed:
            for record in records:
                partition = self._partitions.get(record.partition())
                if record.error() is not None:
                    self._in_doubt = True
                    self._denied = record.error() if record.error().code() in DENIED else self._denied
                elif partition is not None:
                    partition.fetch(record.offset())
                    self._ready.append(HeldRecord(self, partition, record))
            self._changed.notify_all()

    def _pause_or_resume(self) -> None:
        """Bound what is kept in memory. Polling continues meanwhile: a member that does not poll is removed from the
        group.
        """
        kept = sum(one.kept for one in self._partitions.values())
        should_pause = kept >= (self._prefetch // 2 + 1 if self._is_paused else self._prefetch)
        if should_pause != self._is_paused:
            change = self._consumer.pause if should_pause else self._consumer.resume
            with contextlib.suppress(KafkaException):
                change(self._consumer.assignment())
                self._is_paused = should_pause

    def _commit_watermarks(self) -> None:
        """Called outside of the lock and by this thread only: librdkafka reports on commits while it takes the next
        one.
        """
        with self._changed:
            behind = [one for one in self._partitions.values() if one.watermark > one.asked]
            offsets = [TopicPartition(self.topic, one.number, one.watermark) for one in behind]
            for one in behind:
                one.asked = one.watermark
        if offsets:
            with contextlib.suppress(KafkaException):
                self._consumer.commit(offsets=offsets, asynchronous=True)

    def _commit_now(self, partitions: Sequence[_Partition]) -> None:
        offsets = [TopicPartition(self.topic, one.number, one.watermark) for one in partitions if one.watermark >= 0]
        if offsets:
            with contextlib.suppress(KafkaException):
                self._consumer.commit(offsets=offsets, asynchronous=False)

    # -- what librdkafka reports, on the thread ------------------------------------------------

    def _on_assign(self, _: Consumer, assigned: Sequence[TopicPartition]) -> None:
        with self._changed:
            for one in assigned:
                self._partitions[one.partition] = _Partition(one.partition)
            self._joined, self._is_paused = True, False
            self._changed.notify_all()

    def _on_revoke(self, _: Consumer, revoked: Sequence[TopicPartition]) -> None:
        """Another member gets these partitions: wait for the deliveries being processed, commit, and release them."""
        leaving = [self._partitions[one.partition] for one in revoked if one.partition in self._partitions]
        with self._changed:
            self._ready = deque(hold for hold in self._ready if hold.partition not in leaving)
            self._changed.wait_for(lambda: self._stopped or not any(one.held for one in leaving), REVOKE_SECONDS)
        self._commit_now(leaving)
        with self._changed:
            self._drop([one.number for one in leaving])

    def _on_lost(self, _: Consumer, lost: Sequence[TopicPartition]) -> None:
        """Another member has these partitions already: nothing may be committed any more."""
        with self._changed:
            self._drop([one.partition for one in lost])

    def _drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            partition = self._partitions.pop(number, None)
            if partition is not None:
                partition.is_ours = False
        self._ready = deque(hold for hold in self._ready if hold.partition.is_ours)
        self._later = [entry for entry in self._later if entry[2].partition.is_ours]
        heapq.heapify(self._later)

    def _on_commit(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        failed = [one.partition for one in offsets if error is not None or one.error is not None]
        with self._changed:
            for number in failed:
                if number in self._partitions:
                    self._partitions[number].asked = -1
            if failed:
                self._commit_after = self._clock.monotonic() + COMMIT_AGAIN

    def _on_error(self, error: KafkaError) -> None:
        self._in_doubt = True
