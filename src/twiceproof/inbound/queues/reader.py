"""Reads a queue: receives, admits and settles deliveries, and survives outages of the store and the broker.

One thread for each consumer, with a connection of its own. It never has more than `prefetch` deliveries, and
acknowledges none before its claim is durable. An unsettled delivery comes again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import ceil
from queue import Empty, SimpleQueue

from msgspec import Struct

from ...brokers.base import Broker, BrokerFinding, DeliverySettlement, Extend, QueueDelivery, Requeue
from ...errors import BrokerUnavailable, Misuse, StoreError, StoreUnavailable
from ...flows.runtime import Runtime
from ...flows.workers.worker import RunExecutor
from ...operations import Operation
from ...records import Address
from ..admit import Admitted
from ..hook import span
from .admissions import LONGEST_AGAIN, RunAdmission, admit_delivery, admit_together, order_of, settlement_of
from .consumer import Consumer
from .messages import NO_KEY, QueueSource
from .ordered_deliveries import OrderedDeliveries, ReaderLease

__all__ = ["SHORT_WAIT", "WAIT", "OpenedBroker", "QueueReader", "forgotten_early"]


log = logging.getLogger("twiceproof.consume")

FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0  # seconds, while the broker or the store cannot be reached
WAIT = 1.0  # seconds that a receive waits: as long as an idle reader may take to stop
SHORT_WAIT = 0.05  # the same while functions run that must be settled when they end
LEAST_HOLD = 2.0  # seconds by which a delivery is extended, at least
COUNT_EVERY = 15.0  # seconds
PROBE = Address("~consumers", "probe", "self")

Answer = tuple[QueueDelivery, Admitted]


class OpenedBroker(Struct, frozen=True):
    """A connection. A broker that the user opened is `shared`, and is not closed here."""

    broker: Broker
    shared: bool = False


class _Outage:
    """An outage: one log line when it begins, one when it ends, and growing pauses between tries."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pause = FIRST_RETRY
        self.is_on = False

    def begin(self, error: object) -> float:
        """Return after how many seconds to try again."""
        if not self.is_on:
            log.warning("%s, will try again: %s", self._what, error)
        self.is_on = True
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_RETRY)
        return pause

    def end(self) -> None:
        if self.is_on:
            log.info("%s: it is back", self._what)
        self.is_on = False
        self._pause = FIRST_RETRY


class _Held:
    """A delivery that is being admitted, and until when the broker reserves it for us."""

    __slots__ = ("delivery", "span", "until")

    def __init__(self, delivery: QueueDelivery, now: float) -> None:
        self.delivery = delivery
        self.until = delivery.until
        self.span = LEAST_HOLD if delivery.until is None else max(LEAST_HOLD, delivery.until - now)

    def extension(self, now: float) -> Extend | None:
        if self.until is None or now < self.until - self.span / 2:
            return None
        self.until = now + self.span
        return Extend(self.span)


class QueueReader:
    """Reads the queue of one consumer."""

    def __init__(self, runtime: Runtime, consumer: Consumer, open_broker: Callable[[], OpenedBroker]) -> None:
        self.runtime = runtime
        self.consumer = consumer
        self.outcomes: Counter[str] = Counter()
        self.redelivered = 0
        self.waiting: int | None = None  # messages in the queue at the last count, where the broker can tell
        self._count_at = 0.0
        self.refused = ""  # why it has stopped for good
        self._open = open_broker
        self._opened: OpenedBroker | None = None
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._held: dict[int, _Held] = {}
        self._answers: SimpleQueue[Sequence[Answer]] = SimpleQueue()
        places = consumer.prefetch if consumer.function is not None else 1  # a batch takes one place
        self._executor = RunExecutor(places, lambda: None)
        self._lines = OrderedDeliveries() if consumer.order is not None else None
        self._turn = ReaderLease(runtime, consumer.queue_operation)  # of an ordered consumer
        self._not_before = 0.0  # until when the broker holds the deliveries of a lost connection
        self._has_seen_key = self._has_examined = False
        self._broker_outage = _Outage(f"{consumer.name}: the broker cannot be read")
        self._store_outage = _Outage(f"{consumer.name}: the store failed, so nothing is received or acknowledged")

    # -- its life --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Receive nothing more. What was received is admitted and settled."""
        self._stopping.set()

    def abandon(self) -> None:
        """Settle nothing more: unsettled deliveries come again."""
        self._stopping.set()
        self._abandoned.set()

    def run(self) -> None:
        """Read until told to stop; then finish what was received."""
        try:
            while not self._stopping.is_set():
                self.round()
            self._finish()
        finally:
            self._close()
            self._executor.close()

    def round(self, wait: float = WAIT) -> int:
        """Receive, admit and settle once. Return how many deliveries were received."""
        try:
            received = 0
            if not self._store_outage.is_on or self._store_is_back():
                received = self._receive(wait)
            self._settle_answers(wait=not self._is_inline)
            return received
        except Misuse:
            raise
        except Exception as error:
            if not isinstance(error, BrokerUnavailable):
                log.exception("%s: reading failed", self.consumer.name)
            self._close()  # its deliveries come again
            self._pause(self._broker_outage.begin(error))
            return 0

    @property
    def _is_inline(self) -> bool:
        return self.consumer.function is not None

    def _finish(self) -> None:
        with suppress(BrokerUnavailable):
            while self._held and not self._abandoned.is_set() and not self._is_stuck:
                self._settle_answers(wait=True)
        if self._lines is not None:
            (self._turn.let_lapse if self._held else self._turn.give_back)()
        if self._held:
            log.warning("%s: stopped with %d deliveries unsettled, to come again", self.consumer.name, len(self._held))

    @property
    def _is_stuck(self) -> bool:
        """Whether all remaining deliveries wait for one that is to be retried."""
        return self._lines is not None and self._lines.is_idle

    def _pause(self, seconds: float) -> None:
        """Wait, unless told to stop. Deliveries whose functions run are extended meanwhile."""
        for _ in range(ceil(seconds / WAIT)):
            if self._stopping.wait(min(WAIT, seconds)):
                return
            if self._opened is not None:
                self._extend()

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if self._lines is not None:
            self._lines.clear()
            self._not_before = max((one.until or 0.0 for one in self._held.values()), default=self._not_before)
        self._held = {}
        if opened is not None and not opened.shared:
            try:
                opened.broker.close()
            except Exception as error:  # noqa: BLE001 - it is gone either way
                log.warning("%s: the broker's connection was not closed properly: %s", self.consumer.name, error)

    # -- receiving -------------------------------------------------------------------------------

    def _receive(self, wait: float) -> int:
        if self._lines is not None and not self._may_read(wait):
            return 0
        free = self.consumer.prefetch - len(self._held)
        if not free:
            self._wait_for_answers()
            return 0
        broker = self._broker()
        self._count_waiting(broker)
        found = broker.receive(self.consumer.place, free, min(wait, SHORT_WAIT) if self._held else wait)
        self._broker_outage.end()
        if not found or self._refuses(broker, found):
            return 0
        now = self.runtime.clock.monotonic()
        self._held |= {id(delivery): _Held(delivery, now) for delivery in found}
        if self._lines is not None:
            self._lines.add_all((order_of(self.runtime, self.consumer, delivery), delivery) for delivery in found)
        self._submit(found if self._lines is None else self._lines.ready(now))
        return len(found)

    def _count_waiting(self, broker: Broker) -> None:
        """Count what waits in the queue from time to time, for metrics. Not every broker can tell."""
        count, now = getattr(broker, "waiting", None), self.runtime.clock.monotonic()
        if count is not None and now >= self._count_at:
            self._count_at = now + COUNT_EVERY
            self.waiting = count(self.consumer.place)

    def _submit(self, found: Sequence[QueueDelivery]) -> None:
        if self._is_inline:
            for delivery in found:
                self._executor.submit(self._admit_one(delivery), awaited=self.consumer.awaits)
        elif found:
            self._executor.submit(self._admit_batch(found), awaited=True)

    def _may_read(self, wait: float) -> bool:
        """Whether this reader may read. Kept deliveries whose pause is over are retried."""
        try:
            is_ours = self._turn.is_ours()
        except StoreError as error:
            self._pause(self._store_outage.begin(error))
            return False
        if not is_ours:
            if self._held:
                log.warning("%s: another process reads it now", self.consumer.name)
                self._close()
            self._stopping.wait(wait)
            return False
        now = self.runtime.clock.monotonic()
        if now < self._not_before:
            self._stopping.wait(min(wait, self._not_before - now))
            return False
        assert self._lines is not None  # noqa: S101 - asked for ordered consumers
        self._submit(self._lines.ready(now))
        return True

    def _broker(self) -> Broker:
        if self._opened is None:
            self._opened = self._open()
            if not self._has_examined:
                self._has_examined = True
                self._warn_if_forgotten_early(self._opened.broker)
        return self._opened.broker

    def _warn_if_forgotten_early(self, broker: Broker) -> None:
        for finding in broker.examine([self.consumer.place]):
            if text := forgotten_early(self.consumer, finding):
                log.warning("%s", text)

    def _refuses(self, broker: Broker, found: Sequence[QueueDelivery]) -> bool:
        """Stop if the sender's id is the key, and no message has one: each would become a dead letter."""
        source = self.consumer.source
        if self._has_seen_key or not isinstance(source, QueueSource) or not source.native:
            return False
        self._has_seen_key = any(delivery.key for delivery in found)
        if self._has_seen_key:
            return False
        broker.settle([(delivery, Requeue(LONGEST_AGAIN)) for delivery in found])
        self.refused = f"{self.consumer.name} has stopped at its first messages: {NO_KEY}."
        log.error("%s", self.refused)
        self.stop()
        return True

    def _admit_one(self, delivery: QueueDelivery) -> Operation[None]:
        admitted = Admitted("failed", reason="it was interrupted")
        try:
            admitted = yield from admit_delivery(self.runtime, self.consumer, delivery)
        finally:
            self._answers.put([(delivery, admitted)])

    def _admit_batch(self, deliveries: Sequence[QueueDelivery]) -> Operation[None]:
        answers = [(delivery, Admitted("failed", reason="it was interrupted")) for delivery in deliveries]
        try:
            answers = yield from admit_together(self.runtime, self.consumer, deliveries)
        finally:
            self._answers.put(answers)

    # -- settling --------------------------------------------------------------------------------

    def _settle_answers(self, *, wait: bool) -> None:
        """Settle what has been admitted. `wait`: until there is something, as long as anything is held."""
        if wait and self._held and self._answers.empty():
            self._wait_for_answers()
        answers = list(self._ready())
        if answers:
            self._count(answers)
            roll = self.runtime.roll
            words = [(one, settlement_of(self.consumer, word, self._times(one), roll())) for one, word in answers]
            if self._lines is not None:
                words = list(self._lines.settle(words, self.runtime.clock.monotonic()))
            for delivery, _ in words:
                self._held.pop(id(delivery), None)
            if words:
                self._settle(words)
            self._look_for_outage(answers)
            if self._lines is not None and not self._store_outage.is_on:
                self._submit(self._lines.ready(self.runtime.clock.monotonic()))
        self._extend()

    def _times(self, delivery: QueueDelivery) -> int | None:
        return delivery.times if self._lines is None else self._lines.times(delivery)

    def _ready(self) -> Iterator[Answer]:
        """Yield the outcomes of deliveries of the current connection; those of earlier connections come again
        anyway.
        """
        with suppress(Empty):
            while True:
                yield from (answer for answer in self._answers.get_nowait() if id(answer[0]) in self._held)

    def _wait_for_answers(self) -> None:
        """Wait for the next answers, extending what is held meanwhile."""
        for _ in range(round(WAIT / SHORT_WAIT)):
            with suppress(Empty):
                self._answers.put(self._answers.get(timeout=SHORT_WAIT))
                return
            self._extend()

    def _extend(self) -> None:
        now = self.runtime.clock.monotonic()
        longer = [(held.delivery, word) for held in self._held.values() if (word := held.extension(now))]
        if longer:
            self._settle(longer)

    def _settle(self, words: Sequence[tuple[QueueDelivery, DeliverySettlement]]) -> None:
        self._broker().settle(words)

    def _count(self, answers: Sequence[Answer]) -> None:
        for delivery, admitted in answers:
            self.outcomes[admitted.outcome] += 1
            again = (delivery.times or 1) > 1
            self.redelivered += again
            if again:
                log.debug("%s: delivered %s times: %s", self.consumer.name, delivery.times, admitted.outcome)
            if admitted.outcome == "failed":
                log.warning("%s: a message failed, and is delivered again: %s", self.consumer.name, admitted.reason)

    # -- the store -------------------------------------------------------------------------------

    def _look_for_outage(self, answers: Sequence[Answer]) -> None:
        away = next((admitted for _, admitted in answers if admitted.outcome == "unavailable"), None)
        if away is not None:
            self._pause(self._store_outage.begin(away.reason))

    def _store_is_back(self) -> bool:
        """Test the store with a read, without receiving: brokers count deliveries, and some drop a message after a
        number of them.
        """
        try:
            self.runtime.store.read(PROBE).block()
        except StoreError as error:
            if isinstance(error, StoreUnavailable) and error.data.get("closed"):
                self.stop()
            self._pause(self._store_outage.begin(error))
            return False
        self._store_outage.end()
        return True


def forgotten_early(consumer: Consumer, finding: BrokerFinding) -> str:
    """Return the warning that claims expire while the broker may still deliver their messages, or ""."""
    keep = consumer.policy.life.keep
    if finding.keeps is None or keep is None or keep >= finding.keeps:
        return ""
    where = f"the flow {consumer.flow.name}" if consumer.admission is RunAdmission else "app.consume"
    keeps = span(finding.keeps)
    return (
        f"The broker keeps messages of {consumer.name} for {keeps}, but they are forgotten here after {span(keep)}: "
        f"one that is delivered again later would be processed twice. Give {where} keep={keeps!r} or more."
    )
