"""Amazon SQS, standard queues and FIFO queues. Extra: `sqs`.

A place is a queue's name, or `ACCOUNT/NAME` for one of another account. Queues are made by their owner, not here. In a
FIFO queue (`NAME.fifo`) the order key is the message group, and the key the deduplication id, which SQS remembers for
five minutes. A standard queue promises no order and does not deduplicate.

Only one message of an order key is under way at a time: SQS may refuse one message of a batch and store later ones.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from ..clock import Clock, system_clock
from ..errors import BrokerUnavailable
from ..threads import at_fork
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
    Reject,
    Requeue,
    Unconfirmed,
)
from .publishing import AFTER_UNCONFIRMED, lanes_of, publish_fit
from .sqs_calls import (
    ANSWER_SECONDS,
    LONGEST_POLL,
    THROTTLED,
    CallFailed,
    called,
    client_of,
    explained,
    run_at_once,
)
from .sqs_messages import FIFO, MOST_BYTES, SYSTEM, batches, copied, delivery_of, entry_of

__all__ = ["SqsBroker"]

DEDUPE = 300.0  # of FIFO queues; Amazon's, and fixed
CHECKED = "This was checked against an emulator, not against the service: try it out first."
MOST_TAKEN = 10  # deliveries of one call
LONGEST_HOLD = 43_200  # seconds
CLOSE_SECONDS = 2.0
PAUSE = 0.1  # seconds between two queries, if the time is too short for SQS to wait
SHORT_LEASE, SHORT_RETENTION = 10, 86_400  # seconds, below which a setting is a warning


@dataclass(frozen=True)
class _Queue:
    url: str
    place: str
    lease: float = 0.0  # for how long its deliveries are held

    @property
    def is_fifo(self) -> bool:
        return self.place.endswith(FIFO)


@dataclass(eq=False)
class _Hold:
    """A delivery that we hold, until when by our clock, and the data for its copy in the dead-letter queue."""

    queue: _Queue
    receipt: str
    until: float
    message: dict[str, Any]


class SqsBroker:
    """`sqs://eu-west-1`, `sqs://key:secret@sqs.eu-west-1.amazonaws.com`; `sqs+http://host:port/region` without TLS.

    Without a login in the URL, credentials are found as boto3 finds them. `lease` is the visibility timeout of
    deliveries; 0 uses the queue's. `dedupe` is the window of the queues published to: 0 as soon as one is not a FIFO
    queue.
    """

    def __init__(self, url: str, *, lease: int = 0, clock: Clock = system_clock) -> None:
        self.dedupe = 0.0
        self._url = url
        self._lease = lease
        self._clock = clock
        self._places: set[str] = set()  # published to
        self._mutex = threading.Lock()
        self._made: Any = None
        self._queues: dict[str, _Queue] = {}
        self._held: set[_Hold] = set()
        at_fork(self, in_child=SqsBroker._reset_after_fork)

    # -- the seam ------------------------------------------------------------------------------

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> Sequence[Publication]:
        end = self._clock.monotonic() + patience
        return publish_fit(messages, MOST_BYTES, lambda fit: self._publish(fit, end))

    def receive(self, place: str, limit: int, wait: float) -> Sequence[QueueDelivery]:
        end = self._clock.monotonic() + wait
        try:
            queue = self._queue(place, with_lease=True)
            while True:
                left = max(0.0, end - self._clock.monotonic())
                found = self._poll(queue, min(limit, MOST_TAKEN), left)
                if found or left <= 0:
                    return self._poll_more(queue, found, limit)
                self._clock.sleep(min(PAUSE, left))
        except CallFailed as error:
            self._queues.pop(place, None)
            raise BrokerUnavailable(explained(self._url, error.error, place), missing=error.is_missing) from None

    def settle(self, settlements: Sequence[tuple[QueueDelivery, DeliverySettlement]]) -> None:
        now = self._clock.monotonic()
        taken: list[tuple[_Hold, DeliverySettlement]] = []
        with self._mutex:
            for delivery, word in settlements:
                hold: _Hold = delivery.tag
                if hold in self._held and now < hold.until:  # later, another consumer may have it
                    taken.append((hold, word))
                    self._held -= set() if isinstance(word, Extend) else {hold}
        run_at_once(self._settling(taken), ANSWER_SECONDS)

    def examine(self, places: Sequence[str] = ()) -> Sequence[BrokerFinding]:
        try:
            self._ask("list_queues", MaxResults=1)
        except CallFailed as error:
            if not error.is_login or not places:  # listing queues needs a permission of its own
                return [BrokerFinding("error", "connection", explained(self._url, error.error))]
        found = [BrokerFinding("ok", "server", f"Amazon SQS. {CHECKED}")]
        return found + [finding for place in places for finding in self._examine_place(place)]

    def waiting(self, place: str) -> int | None:
        """Return an approximation: SQS counts on several machines."""
        try:
            return int(self._attributes(self._queue(place).url)["ApproximateNumberOfMessages"])
        except (CallFailed, ClientError, BotoCoreError):
            return None

    def close(self) -> None:
        """Give back what is not settled: otherwise SQS redelivers it only when its time is over."""
        now = self._clock.monotonic()
        held = [(hold, Requeue()) for hold in self._held if now < hold.until]
        self._held = set()
        if held:
            run_at_once(self._settling(held), CLOSE_SECONDS)
        self._reset_after_fork()

    # -- publishing ----------------------------------------------------------------------------

    def _publish(self, messages: Sequence[OutgoingMessage], end: float) -> list[Publication]:
        outcomes: dict[int, Publication] = {}
        lanes = lanes_of(messages)
        queues = {place: self._to_publish_to(place, end) for place in {message.place for message in messages}}
        while lanes:
            outcomes.update(self._publish_heads([(lane[0], messages[lane[0]]) for lane in lanes], queues, end))
            lanes = [lane[1:] for lane in lanes if _goes_on(messages[lane[0]], outcomes[lane[0]])]
            lanes = [lane for lane in lanes if lane]
        return [outcomes.get(at, AFTER_UNCONFIRMED) for at in range(len(messages))]

    def _publish_heads(
        self, heads: list[tuple[int, OutgoingMessage]], queues: dict[str, _Queue | Refused], end: float
    ) -> dict[int, Publication]:
        """Publish the first of each lane, in batches, several at once."""
        outcomes: dict[int, Publication] = {}
        entries: dict[_Queue, list[dict[str, Any]]] = {}
        for at, message in heads:
            queue = queues[message.place]
            entry = entry_of(at, message, fifo=queue.is_fifo) if isinstance(queue, _Queue) else queue
            if isinstance(entry, Refused):
                outcomes[at] = entry
            else:
                entries.setdefault(queue, []).append(entry)  # type: ignore[arg-type]
        left = [(queue, batch) for queue, found in entries.items() for batch in batches(found)]
        while left:
            calls = [functools.partial(self._send_batch, *batch) for batch in left]
            answered = list(zip(left, run_at_once(calls, end - self._clock.monotonic()), strict=True))
            left = []
            for (queue, batch), answer in answered:
                if len(batch) > 1 and _blames_a_message(answer):  # by itself, each message has an outcome of its own
                    left += [(queue, [entry]) for entry in batch]
                else:
                    outcomes.update(self._outcomes(queue, batch, answer))
        return outcomes

    def _to_publish_to(self, place: str, end: float) -> _Queue | Refused:
        try:
            queue = self._queue(place, seconds=end - self._clock.monotonic())
        except CallFailed as error:
            return Refused(explained(self._url, error.error, place), away=not error.is_missing)
        self._places.add(place)
        self.dedupe = DEDUPE if all(name.endswith(FIFO) for name in self._places) else 0.0
        return queue

    def _send_batch(self, queue: _Queue, entries: list[dict[str, Any]]) -> Any:
        return self._client.send_message_batch(QueueUrl=queue.url, Entries=entries)

    def _outcomes(self, queue: _Queue, entries: list[dict[str, Any]], answer: Any) -> Iterator[tuple[int, Publication]]:
        if isinstance(answer, dict):
            stored = {entry["Id"]: Confirmed(entry["MessageId"]) for entry in answer.get("Successful", ())}
            failed = {entry["Id"]: _refusal(queue, entry) for entry in answer.get("Failed", ())}
            for entry in entries:
                unknown = Unconfirmed("SQS answered without a word about it.")
                yield int(entry["Id"]), stored.get(entry["Id"]) or failed.get(entry["Id"], unknown)
        else:
            outcome = self._outcome(queue, answer)
            yield from ((int(entry["Id"]), outcome) for entry in entries)

    def _outcome(self, queue: _Queue, error: BaseException | None) -> Publication:
        """The outcome of a batch as a whole, which was not answered or was refused."""
        if error is None:
            return Refused("It was not handed over: the time was over; publish it again.", away=True)
        failed = CallFailed(error)
        if failed.is_missing:
            self._queues.pop(queue.place, None)
        if _blames_a_message(error):
            return _refused(queue, failed.code, failed.text)
        if failed.is_unsent or failed.is_answer:
            return Refused(explained(self._url, error, queue.place), away=not failed.is_missing)
        return Unconfirmed(f"It was handed over, and SQS did not answer ({type(error).__name__}).")

    # -- receiving -----------------------------------------------------------------------------

    def _poll_more(self, queue: _Queue, found: list[QueueDelivery], limit: int) -> list[QueueDelivery]:
        """SQS hands out ten at a time. What was received is returned even if a later call fails."""
        more = found
        with contextlib.suppress(CallFailed):
            while more and len(found) < limit:
                more = self._poll(queue, min(limit - len(found), MOST_TAKEN), 0.0)
                found = [*found, *more]
        return found

    def _poll(self, queue: _Queue, limit: int, wait: float) -> list[QueueDelivery]:
        """Let SQS wait for at most a quarter of the lease: when it handed out a message is only known to that
        precision.
        """
        seconds = int(min(wait, LONGEST_POLL, queue.lease / 4))
        until = self._clock.monotonic() + queue.lease
        answer = self._ask(
            "receive_message",
            seconds=seconds + ANSWER_SECONDS,
            QueueUrl=queue.url,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=seconds,
            VisibilityTimeout=int(queue.lease),
            MessageSystemAttributeNames=SYSTEM,
            MessageAttributeNames=["All"],
        )
        holds = [_Hold(queue, message["ReceiptHandle"], until, message) for message in answer.get("Messages", ())]
        now = self._clock.monotonic()
        with self._mutex:
            self._held = {hold for hold in self._held if now < hold.until}.union(holds)
        return [delivery_of(queue.place, hold.message, hold, hold.until) for hold in holds]

    def _settling(self, taken: Sequence[tuple[_Hold, DeliverySettlement]]) -> list[Callable[[], Any]]:
        """Return the calls that settle deliveries: deletions and visibility timeouts in batches, rejections one by
        one.
        """
        deleted: dict[_Queue, list[dict[str, Any]]] = {}
        changed: dict[_Queue, list[dict[str, Any]]] = {}
        calls: list[Callable[[], Any]] = []
        for at, (hold, word) in enumerate(taken):
            entry = {"Id": str(at), "ReceiptHandle": hold.receipt}
            if isinstance(word, Ack):
                deleted.setdefault(hold.queue, []).append(entry)
            elif isinstance(word, Reject):
                calls.append(functools.partial(self._reject, hold))
            else:
                seconds = _whole(word.seconds if isinstance(word, Extend) else word.after)
                hold.until = self._clock.monotonic() + seconds
                changed.setdefault(hold.queue, []).append({**entry, "VisibilityTimeout": seconds})
        for operation, by_queue in (("delete_message_batch", deleted), ("change_message_visibility_batch", changed)):
            for queue, entries in by_queue.items():
                for batch in batches(entries):
                    call = getattr(self._client, operation)
                    calls.append(functools.partial(call, QueueUrl=queue.url, Entries=batch))
        return calls

    def _reject(self, hold: _Hold) -> None:
        """SQS itself moves a message only after so many deliveries: it is copied to the dead letters, then deleted."""
        policy = self._attributes(hold.queue.url).get("RedrivePolicy")
        if policy:
            target = msgspec.json.decode(policy)["deadLetterTargetArn"].split(":")
            found = self._client.get_queue_url(QueueName=target[-1], QueueOwnerAWSAccountId=target[-2])
            self._client.send_message(QueueUrl=found["QueueUrl"], **copied(hold.message))
        self._client.delete_message(QueueUrl=hold.queue.url, ReceiptHandle=hold.receipt)

    # -- examining -----------------------------------------------------------------------------

    def _examine_place(self, place: str) -> list[BrokerFinding]:
        try:
            attributes = self._attributes(self._queue(place).url)
        except (CallFailed, ClientError, BotoCoreError) as error:
            self._queues.pop(place, None)
            return [BrokerFinding("error", place, explained(self._url, getattr(error, "error", error), place))]
        return list(_examine_queue(place, attributes, self._lease))

    # -- calls ---------------------------------------------------------------------------------

    def _queue(self, place: str, *, with_lease: bool = False, seconds: float = ANSWER_SECONDS) -> _Queue:
        known = self._queues.get(place)
        if known is None:
            account, _, name = place.rpartition("/")
            owner = {"QueueOwnerAWSAccountId": account} if account else {}
            answer = self._ask("get_queue_url", seconds=seconds, QueueName=name or "-", **owner)
            known = self._queues[place] = _Queue(answer["QueueUrl"], place)
        if with_lease and not known.lease:
            answer = self._ask("get_queue_attributes", QueueUrl=known.url, AttributeNames=["VisibilityTimeout"])
            lease = self._lease or float(answer["Attributes"]["VisibilityTimeout"])
            known = self._queues[place] = _Queue(known.url, place, lease)
        return known

    def _attributes(self, queue_url: str) -> dict[str, str]:
        found: dict[str, str] = self._client.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["All"])[
            "Attributes"
        ]
        return found

    def _ask(self, operation: str, *, seconds: float = ANSWER_SECONDS, **arguments: Any) -> Any:
        call = functools.partial(called, self._client, operation, arguments)
        (answer,) = run_at_once([call], seconds)
        if answer is None or isinstance(answer, BaseException):
            raise CallFailed(answer or TimeoutError())
        return answer

    @property
    def _client(self) -> Any:
        with self._mutex:
            if self._made is None:
                self._made = client_of(self._url)
            return self._made

    def _reset_after_fork(self) -> None:
        """Called when it is closed, and in a forked child, where connections and deliveries belong to the parent."""
        self._mutex = threading.Lock()
        self._made, self._queues, self._held = None, {}, set()


# -- outcomes ------------------------------------------------------------------------------------


def _goes_on(message: OutgoingMessage, outcome: Publication) -> bool:
    return not message.order or isinstance(outcome, Confirmed)


def _refusal(queue: _Queue, failed: dict[str, Any]) -> Publication:
    """The refusal of one message of a batch. After an internal error of SQS the outcome is unknown."""
    code, text = failed.get("Code", ""), failed.get("Message", "")
    if failed.get("SenderFault") or code in THROTTLED:
        return _refused(queue, code, text)
    return Unconfirmed(f"SQS failed while it stored the message ({code}).")


def _refused(queue: _Queue, code: str, text: str) -> Refused:
    return Refused(f"The queue {queue.place!r} did not take it: {code}: {text[:200]}; check the queue's settings.")


def _blames_a_message(answer: object) -> bool:
    """Whether a request was refused for what is in it. Others would be refused too if it were the login, the queue or
    the rate.
    """
    failed = CallFailed(answer) if isinstance(answer, BaseException) else None
    return failed is not None and failed.is_answer and not (failed.is_missing or failed.is_login or failed.is_for_all)


def _whole(seconds: float) -> int:
    return min(math.ceil(seconds), LONGEST_HOLD)


# -- examining -----------------------------------------------------------------------------------


def _examine_queue(place: str, attributes: dict[str, str], own_lease: int) -> Iterator[BrokerFinding]:
    keeps, lease = int(attributes["MessageRetentionPeriod"]), own_lease or int(attributes["VisibilityTimeout"])
    if place.endswith(FIFO):
        yield BrokerFinding("ok", place, f"It drops a message whose key it has seen within {DEDUPE:g} seconds.")
    else:
        text = "It keeps no order, and may deliver a message twice; use a FIFO queue for messages with an order key."
        yield BrokerFinding("warning", place, text)
    if keeps < SHORT_RETENTION:
        text = f"It loses what is not received within {keeps} seconds. Set MessageRetentionPeriod to 1209600."
        yield BrokerFinding("warning", place, text, keeps=keeps)
    else:
        yield BrokerFinding("ok", place, f"It keeps messages for {keeps} seconds.", keeps=keeps)
    if lease < SHORT_LEASE:
        text = f"A delivery comes again after {lease} seconds, while work on it may go on. Set VisibilityTimeout to 30."
        yield BrokerFinding("warning", place, text)
    if "RedrivePolicy" not in attributes:
        text = "It has no dead-letter queue: what is rejected is deleted. Set a RedrivePolicy."
        yield BrokerFinding("warning", place, text)
