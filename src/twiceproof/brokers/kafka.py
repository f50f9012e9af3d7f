"""Apache Kafka. Extra: `kafka`. Checked against librdkafka's mock cluster, not against a Kafka server.

A place to publish to is a topic, and to receive from `TOPIC/GROUP`. The order key is the record's key, which chooses
the partition. Rejected messages are copied to the topic `TOPIC.dead`, where there is one.

Kafka does not deduplicate by key: the cluster recognises a request that librdkafka repeats only within the session of
one producer. Only one message of an order key is under way at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from ..clock import Clock, system_clock
from ..errors import BrokerUnavailable
from ..threads import at_fork, run_within
from .base import (
    Ack,
    BrokerFinding,
    Confirmed,
    DeliverySettlement,
    Extend,
    OutgoingMessage,
    Publication,
    QueueDelivery,
    Refused,
    Requeue,
    Unconfirmed,
)
from .kafka_client import (
    ANSWER_SECONDS,
    MISSING,
    client_settings,
    count_uncommitted,
    describe,
    examine_topic,
    record_of,
    topic_problem,
    unreachable,
)
from .kafka_group import GroupMember, HeldRecord
from .publishing import AFTER_UNCONFIRMED, lanes_of, publish_fit

__all__ = ["DEAD", "MOST_BYTES", "PREFETCH", "KafkaBroker"]

MOST_BYTES = 16 * 1024 * 1024
PREFETCH = 2_000
CHECKED = "This was checked against librdkafka's mock cluster, not against a Kafka server: try it out first."
DEAD = ".dead"  # suffix of the topic for dead letters
CLOSE_SECONDS = 3.0
KNOWN_SECONDS = 10.0  # for which the existence of a topic is not checked again
BURY_AGAIN = 5.0  # seconds until redelivery if the copy was not confirmed
SETTINGS = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 1,
    "message.max.bytes": MOST_BYTES + 1024 * 1024,
    "allow.auto.create.topics": False,
}
# The cluster's own word that it did not store it, whichever attempt it answers.
REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
}
_inherited: list[Any] = []  # by a forked child: to end a client there waits for threads that do not exist


class KafkaBroker:
    """`kafka://host:9092`, `kafkas://user:password@host:9093/SCRAM-SHA-512` with TLS; `h1,h2:9092` for more than one.

    `prefetch`: how many records are kept in memory for each place, until all before them are settled.
    """

    dedupe = 0.0

    def __init__(self, url: str, *, prefetch: int = PREFETCH, clock: Clock = system_clock) -> None:
        self._url = url
        self._settings = client_settings(url)
        self._prefetch = prefetch
        self._clock = clock
        self._mutex = threading.Lock()
        self._joining = threading.Lock()  # another one: a member may take seconds to join, and others publish meanwhile
        self._made: Producer | None = None
        self._asking: AdminClient | None = None
        self._known: dict[str, float] = {}  # topics, with the time until which they are not checked again
        self._members: dict[str, GroupMember] = {}
        at_fork(self, in_child=KafkaBroker._reset_after_fork)

    # -- the seam ------------------------------------------------------------------------------

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> Sequence[Publication]:
        end = self._clock.monotonic() + patience
        return publish_fit(messages, MOST_BYTES, lambda fit: self._publish(fit, end))

    def receive(self, place: str, limit: int, wait: float) -> Sequence[QueueDelivery]:
        return self._member(place).receive(limit, wait)

    def settle(self, settlements: Sequence[tuple[QueueDelivery, DeliverySettlement]]) -> None:
        rejected: list[HeldRecord] = []
        for delivery, word in settlements:
            hold: HeldRecord = delivery.tag
            if isinstance(word, Extend) or not hold.member.take_back(hold):
                continue
            if isinstance(word, Ack):
                hold.member.finish(hold)
            elif isinstance(word, Requeue):
                hold.member.deliver_again(hold, word.after)
            else:
                rejected.append(hold)
        for hold, is_buried in zip(rejected, self._bury(rejected), strict=True):
            if is_buried:
                hold.member.finish(hold)
            else:
                hold.member.deliver_again(hold, BURY_AGAIN)

    def examine(self, places: Sequence[str] = ()) -> Sequence[BrokerFinding]:
        why = unreachable(self._url, ANSWER_SECONDS)
        try:
            topics = {} if why else self._producer.list_topics(timeout=ANSWER_SECONDS).topics
        except KafkaException as error:
            why = describe(self._url, error)
        if why is not None:
            return [BrokerFinding("error", "connection", why)]
        found = [BrokerFinding("ok", "server", f"Kafka. {CHECKED}")]
        return found + [finding for place in places for finding in self._examine_place(place, topics)]

    def waiting(self, place: str) -> int | None:
        """Return how many records the group has not settled yet, those that it was given among them."""
        if unreachable(self._url, ANSWER_SECONDS) is not None:
            return None
        try:
            return count_uncommitted(self._admin, place)
        except KafkaException:  # not allowed, or not answered
            return None

    def close(self) -> None:
        members, producer = list(self._members.values()), self._made
        self._members, self._made, self._asking, self._known = {}, None, None, {}
        for member in members:
            member.close(CLOSE_SECONDS)
        if producer is not None:
            _end(producer)

    # -- publishing ----------------------------------------------------------------------------

    def _publish(self, messages: Sequence[OutgoingMessage], end: float) -> list[Publication]:
        producer = self._producer
        refused = {place: self._look(producer, place, end) for place in {message.place for message in messages}}
        batch = _Batch(producer, messages, refused, end, self._clock)
        outcomes = batch.publish()
        if not all(isinstance(outcome, Confirmed) for outcome in outcomes):
            self._known = {}
        if batch.is_in_doubt or batch.has_failed:  # nothing of it may be sent later
            self._replace(producer)
        return outcomes

    def _replace(self, producer: Producer) -> None:
        with self._mutex:
            self._made = None if self._made is producer else self._made
        _end(producer)

    def _look(self, producer: Producer, topic: str, end: float) -> Refused | None:
        """Return why the topic takes no messages, or None."""
        found = self._error_of(producer, topic, end)
        return Refused(str(topic_problem(topic, found))) if isinstance(found, KafkaError) else found

    def _error_of(self, producer: Producer, topic: str, end: float) -> KafkaError | Refused | None:
        """Return what the cluster says against the topic, or `Refused` if it cannot be asked."""
        now = self._clock.monotonic()
        if now < self._known.get(topic, 0.0):
            return None
        seconds = max(0.05, min(ANSWER_SECONDS, end - now))
        why = unreachable(self._url, seconds)
        if why is not None:
            return Refused(why, away=True)
        try:
            error: KafkaError | None = producer.list_topics(topic or "-", seconds).topics[topic or "-"].error
        except KafkaException as failure:
            return Refused(describe(self._url, failure), away=True)
        if error is None:
            self._known[topic] = now + KNOWN_SECONDS
        return error

    def _bury(self, rejected: Sequence[HeldRecord]) -> list[bool]:
        """Copy them to the topic for dead letters; return for each whether it may be settled.

        If there is no such topic it may: the record stays in its own topic until the retention ends. If the topic
        cannot be used right now it may not.
        """
        dones: list[bool] = []
        for hold in rejected:
            end = self._clock.monotonic() + ANSWER_SECONDS
            dead = hold.member.topic + DEAD
            found = self._error_of(self._producer, dead, end)
            if found is None:
                dones.append(self._copy(hold.record, dead, end))
            else:
                dones.append(isinstance(found, KafkaError) and found.code() in MISSING)
        return dones

    def _copy(self, record: Any, topic: str, end: float) -> bool:
        reports: list[KafkaError | None] = []
        producer = self._producer
        try:
            producer.produce(
                topic,
                value=record.value(),
                key=record.key(),
                headers=record.headers(),
                on_delivery=lambda error, _: reports.append(error),
            )
            while not reports and (left := end - self._clock.monotonic()) > 0:
                producer.poll(min(0.1, left))
        except BufferError:
            return False
        except KafkaException:
            self._replace(producer)
        return bool(reports) and reports[0] is None  # to compare a KafkaError with None raises TypeError

    # -- receiving and examining ---------------------------------------------------------------

    def _member(self, place: str) -> GroupMember:
        with self._joining:
            member = self._members.get(place)
            if member is None:
                if not all(place.rpartition("/")):
                    raise BrokerUnavailable(f"{place!r} names no group; write it as TOPIC/GROUP.", missing=True)
                member = GroupMember(self._url, self._settings, place, self._prefetch, self._clock, self._topic)
                try:
                    member.start()
                except BrokerUnavailable:
                    member.close(CLOSE_SECONDS)
                    raise
                self._members[place] = member
            return member

    def _examine_place(self, place: str, topics: dict[str, Any]) -> list[BrokerFinding]:
        topic = place.rpartition("/")[0] or place
        found = topics.get(topic)
        if found is None:
            return [BrokerFinding("error", place, f"There is no topic {topic!r}; create it, or correct the name.")]
        problem = topic_problem(topic, found.error)
        if problem is not None:
            return [BrokerFinding("error", place, problem)]
        replicas = min((len(one.replicas) for one in found.partitions.values()), default=0)
        findings = list(examine_topic(place, replicas, self._topic_settings(topic)))
        if place != topic and topic + DEAD not in topics:
            text = f"What is rejected stays in the topic, unmarked. Create the topic {topic + DEAD!r} for dead letters."
            findings.append(BrokerFinding("warning", place, text))
        return findings

    def _topic(self, topic: str) -> Any:
        """Ask for a topic with a client that nothing else uses at the same time, other than short questions."""
        return self._admin.list_topics(topic, ANSWER_SECONDS).topics[topic]

    def _topic_settings(self, topic: str) -> dict[str, str] | None:
        asked = self._admin.describe_configs([ConfigResource("topic", topic)], request_timeout=ANSWER_SECONDS)
        try:
            return {entry.name: entry.value for entry in next(iter(asked.values())).result().values()}
        except KafkaException:  # not allowed, or not answered
            return None

    @property
    def _producer(self) -> Producer:
        with self._mutex:
            if self._made is None:
                self._made = Producer({**self._settings, **SETTINGS})
            return self._made

    @property
    def _admin(self) -> AdminClient:
        with self._mutex:
            if self._asking is None:
                self._asking = AdminClient({**self._settings, "allow.auto.create.topics": False})
            return self._asking

    def _reset_after_fork(self) -> None:
        """In a forked child, where clients and deliveries belong to the parent."""
        _inherited.append((self._made, self._asking, self._members))
        self._mutex, self._joining = threading.Lock(), threading.Lock()
        self._made, self._asking, self._members, self._known = None, None, {}, {}


class _Batch:
    """Messages under way, and the outcome of each. Reports arrive on the thread that polls."""

    def __init__(
        self,
        producer: Producer,
        messages: Sequence[OutgoingMessage],
        refused: dict[str, Refused | None],
        end: float,
        clock: Clock,
    ) -> None:
        self._producer, self._messages, self._refused = producer, messages, refused
        self._end, self._clock = end, clock
        self._begun: set[int] = set()
        self._outcomes: dict[int, Publication] = {}
        self._is_over = False
        self.has_failed = False  # after a fatal error librdkafka's producer refuses everything, for ever

    @property
    def is_in_doubt(self) -> bool:
        return any(isinstance(outcome, Unconfirmed) for outcome in self._outcomes.values())

    def publish(self) -> list[Publication]:
        for lane in lanes_of(self._messages):
            self._go_on(lane)
        while len(self._outcomes) < len(self._messages) and not self.has_failed and (left := self._left()) > 0:
            self._poll(min(0.1, left))  # of one look at the clock: a time below zero is for ever
        self._is_over = True
        for at in range(len(self._messages)):
            self._outcomes.setdefault(at, self._unanswered(at))
        return [self._outcomes[at] for at in range(len(self._messages))]

    def _go_on(self, lane: Sequence[int]) -> None:
        """Hand over the first message of the lane that is not refused at once; the next one follows when its report
        arrives.
        """
        for position, at in enumerate(lane):
            refused = self._hand_over(at, lane[position + 1 :])
            if refused is None:
                return
            self._outcomes[at] = refused
            if self._messages[at].order:
                self._stop(lane[position + 1 :])
                return

    def _hand_over(self, at: int, following: Sequence[int]) -> Refused | None:
        message = self._messages[at]
        refused = self._refused.get(message.place)
        if refused is not None:
            return refused
        while self._left() > 0 and not self.has_failed:
            try:
                self._begun.add(at)
                self._producer.produce(
                    **record_of(message), on_delivery=lambda error, record: self._report(at, following, error, record)
                )
            except BufferError:  # its queue is full
                self._begun.discard(at)
                self._poll(0.01)
            except KafkaException as error:
                self._begun.discard(at)
                return self._not_taken(error.args[0])
            else:
                return None
        return self._not_handed_over()

    def _not_taken(self, error: KafkaError) -> Refused:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return Refused("The client does not take a message of this size; send a reference.", final=True)
        self.has_failed = True
        return self._not_handed_over()

    def _poll(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except KafkaException:
            self.has_failed = True

    def _report(self, at: int, following: Sequence[int], error: KafkaError | None, record: Any) -> None:
        if self._is_over:
            return
        self._outcomes[at] = outcome = _outcome(self._messages[at], error, record)
        if self._messages[at].order and not isinstance(outcome, Confirmed):
            self._stop(following)
        else:
            self._go_on(following)

    def _stop(self, following: Sequence[int]) -> None:
        self._outcomes.update(dict.fromkeys(following, AFTER_UNCONFIRMED))

    def _unanswered(self, at: int) -> Publication:
        if at in self._begun:
            return Unconfirmed(f"It was handed over, and {self._reason} before an answer came.")
        return self._not_handed_over()

    def _not_handed_over(self) -> Refused:
        return Refused(f"It was not handed over: {self._reason}; publish it again.", away=True)

    @property
    def _reason(self) -> str:
        return "the client failed" if self.has_failed else "the time was over"

    def _left(self) -> float:
        return self._end - self._clock.monotonic()


def _outcome(message: OutgoingMessage, error: KafkaError | None, record: Any) -> Publication:
    if error is None:
        return Confirmed(f"{record.partition()}:{record.offset()}")
    if error.code() in REFUSALS:
        return Refused(f"The topic {message.place!r} did not take it ({error.name()}); check the topic's settings.")
    return Unconfirmed(f"It was handed over, and Kafka did not confirm it ({error.name()}).")


def _end(producer: Producer) -> None:
    """Close without sending what is still queued: its outcome has been reported already."""

    def purge() -> None:
        with contextlib.suppress(KafkaException):
            producer.purge()
            producer.flush(CLOSE_SECONDS)

    run_within(CLOSE_SECONDS, purge, "twiceproof-kafka-end")
