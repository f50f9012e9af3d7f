"""Reads a queue: receive, admit, settle; and what happens while the store or the broker is away.

One thread for each consumer, with a connection of its own. It never has more than `prefetch` deliveries, and
acknowledges none before its claim is durable. A delivery that it does not settle comes again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil
from queue import Empty, SimpleQueue
from time import monotonic
from typing import cast

from msgspec import Struct

from ...brokers.base import Broker, BrokerFinding, DeliverySettlement, Extend, QueueDelivery, Requeue
from ...errors import BrokerUnavailable, Misuse, StoreError, StoreUnavailable
from ...flows.runtime import Runtime
from ...flows.workers.worker import RunExecutor
from ...operations import Operation
from ...outbox.routing import Target
from ...records import Address
from ..admit import Admitted
from ..hook import span
from .admissions import LONGEST_AGAIN, RunAdmission, admit_delivery, admit_together, settlement_of
from .consumer import Consumer
from .messages import NO_KEY, QueueSource

__all__ = ["OpenedBroker", "QueueReader", "QueueReaders", "broker_opener", "forgotten_early", "make_readers"]


log = logging.getLogger("twiceproof.consume")

FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0  # seconds, while the broker or the store is away
WAIT = 1.0  # seconds that a receive waits: as long as an idle reader may take to stop
SHORT_WAIT = 0.05  # the same while functions run, whose ends are to be settled
LEAST_HOLD = 2.0  # seconds by which a delivery is extended, at least
PROBE = Address("~consumers", "probe", "self")

Answer = tuple[QueueDelivery, Admitted]


class OpenedBroker(Struct, frozen=True):
    """A connection. A broker that the user opened is `shared`, and is not closed here."""

    broker: Broker
    shared: bool = False


class _Outage:
    """Something that is away: one line when it goes, one when it is back, and a growing pause between two tries."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pause = FIRST_RETRY
        self.is_on = False

    def begin(self, error: object) -> float:
        """Return in how many seconds to try again."""
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
    """A delivery that is being admitted, and until when the broker leaves it with us."""

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

    def __init__(self, parts: Runtime, consumer: Consumer, open_broker: Callable[[], OpenedBroker]) -> None:
        self.parts = parts
        self.consumer = consumer
        self.outcomes: Counter[str] = Counter()
        self.redelivered = 0
        self.refused = ""  # why it has stopped for good
        self._open = open_broker
        self._opened: OpenedBroker | None = None
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._held: dict[int, _Held] = {}
        self._answers: SimpleQueue[Sequence[Answer]] = SimpleQueue()
        places = consumer.prefetch if consumer.function is not None else 1  # a batch takes one place
        self._executor = RunExecutor(places, lambda: None)
        self._has_seen_key = self._has_examined = False
        self._broker_outage = _Outage(f"{consumer.name}: the broker cannot be read")
        self._store_outage = _Outage(f"{consumer.name}: the store failed, so nothing is received or acknowledged")

    # -- its life --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Receive nothing more. What was received is admitted and settled."""
        self._stopping.set()

    def abandon(self) -> None:
        """Settle nothing more: what is not settled comes again."""
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
                self._broker_outage.end()
            self._settle_answers(wait=not self._is_inline)
            return received
        except Misuse:
            raise
        except Exception as error:
            if not isinstance(error, BrokerUnavailable):
                log.exception("%s: reading failed", self.consumer.name)
            self._close()  # what it delivered comes again
            self._pause(self._broker_outage.begin(error))
            return 0

    @property
    def _is_inline(self) -> bool:
        return self.consumer.function is not None

    def _finish(self) -> None:
        with suppress(BrokerUnavailable):
            while self._held and not self._abandoned.is_set():
                self._settle_answers(wait=True)
        if self._held:
            log.warning("%s: stopped with %d deliveries unsettled, to come again", self.consumer.name, len(self._held))

    def _pause(self, seconds: float) -> None:
        """Wait, unless told to stop. Deliveries whose functions run are extended meanwhile."""
        for _ in range(ceil(seconds / WAIT)):
            if self._stopping.wait(min(WAIT, seconds)):
                return
            if self._opened is not None:
                self._extend()

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        self._held = {}
        if opened is not None and not opened.shared:
            try:
                opened.broker.close()
            except Exception as error:  # noqa: BLE001 - it is gone either way
                log.warning("%s: the broker's connection was not closed properly: %s", self.consumer.name, error)

    # -- receiving -------------------------------------------------------------------------------

    def _receive(self, wait: float) -> int:
        free = self.consumer.prefetch - len(self._held)
        if not free:
            self._wait_for_answers()
            return 0
        broker = self._broker()
        found = broker.receive(self.consumer.place, free, min(wait, SHORT_WAIT) if self._held else wait)
        if not found or self._refuses(broker, found):
            return 0
        now = self.parts.clock.monotonic()
        self._held |= {id(delivery): _Held(delivery, now) for delivery in found}
        if self._is_inline:
            for delivery in found:
                self._executor.submit(self._admit_one(delivery), awaited=self.consumer.awaits)
        else:
            self._executor.submit(self._admit_batch(found), awaited=True)
        return len(found)

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
            admitted = yield from admit_delivery(self.parts, self.consumer, delivery)
        finally:
            self._answers.put([(delivery, admitted)])

    def _admit_batch(self, deliveries: Sequence[QueueDelivery]) -> Operation[None]:
        answers = [(delivery, Admitted("failed", reason="it was interrupted")) for delivery in deliveries]
        try:
            answers = yield from admit_together(self.parts, self.consumer, deliveries)
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
            roll = self.parts.roll
            words = [(one, settlement_of(self.consumer, word, one.times, roll())) for one, word in answers]
            for delivery, _ in answers:
                self._held.pop(id(delivery), None)
            self._settle(words)
            self._look_for_outage(answers)
        self._extend()

    def _ready(self) -> Iterator[Answer]:
        """Yield what was answered about deliveries of the present connection; others come again by themselves."""
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
        now = self.parts.clock.monotonic()
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
        """Ask with a read, so that an outage costs no deliveries: brokers count them, and some drop after a number."""
        try:
            self.parts.store.read(PROBE).block()
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


class QueueReaders:
    """The readers of a process, each on a thread. They run beside a worker, or alone."""

    def __init__(self, readers: Sequence[QueueReader]) -> None:
        self.readers = readers
        self._threads: list[threading.Thread] = []
        self.draining = False

    def start(self) -> None:
        for reader in self.readers:
            if reader.consumer.function is None:
                reader.consumer.flow.refuse_best_effort()
        for reader in self.readers:
            name = f"twiceproof-consume-{reader.consumer.name}"
            self._threads.append(threading.Thread(target=self._run, args=(reader,), name=name, daemon=True))
            self._threads[-1].start()

    def _run(self, reader: QueueReader) -> None:
        try:
            reader.run()
        except Exception as error:  # noqa: BLE001 - logged, and the others go on
            reader.refused = reader.refused or f"{reader.consumer.name} has stopped: {error}"
            (log.error if isinstance(error, Misuse) else log.exception)("%s", reader.refused)

    def drain(self) -> None:
        """Receive nothing more. From any thread, and from signal handlers."""
        self.draining = True
        for reader in self.readers:
            reader.stop()

    def stop(self) -> None:
        """Wait for nothing any more: what is not settled comes again."""
        self.draining = True
        for reader in self.readers:
            reader.abandon()

    def join(self, patience: float) -> int:
        """Wait for what was received, at most so many seconds. Return how many readers have not ended by then."""
        left = self._alive_after(patience)
        if left:
            self.stop()
            self._alive_after(WAIT)
        return left

    def _alive_after(self, seconds: float) -> int:
        until = monotonic() + seconds  # of threads, which no injected clock moves
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        return sum(thread.is_alive() for thread in self._threads)

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Nothing is published here."""
        return {}

    def run(self, *, until_idle: bool = False, patience: float = 30.0) -> int:
        """Read until told to drain, or until no reader is left. Return how many have not ended.

        With `until_idle` nothing is read: a queue has no end.
        """
        if until_idle:
            return 0
        self.start()
        while not self.draining and any(thread.is_alive() for thread in self._threads):
            self._threads[-1].join(SHORT_WAIT)
            self._threads.sort(key=threading.Thread.is_alive)
        return self.join(patience)


def make_readers(
    parts: Runtime, consumers: Mapping[str, Consumer], targets: Mapping[str, Target], names: Collection[str] = ()
) -> QueueReaders:
    """Return readers for these consumers, or for all."""
    unknown = sorted(set(names) - set(consumers))
    if unknown:
        known = ", ".join(sorted(consumers)) or "none"
        raise Misuse(f"No consumer is called {unknown[0]!r}; those that are declared: {known}.")
    chosen = [consumers[name] for name in consumers if not names or name in names]
    return QueueReaders([QueueReader(parts, one, broker_opener(one, targets)) for one in chosen])


def broker_opener(consumer: Consumer, targets: Mapping[str, Target]) -> Callable[[], OpenedBroker]:
    """Return what opens a consumer's broker. Raises Misuse if it is not declared."""
    target = targets.get(consumer.broker)
    if target is None:
        known = ", ".join(sorted(targets)) or "none"
        raise Misuse(
            f"{consumer.name} reads from a broker {consumer.broker!r}, which is not declared (known: {known}); declare "
            f'it: app.broker("{consumer.broker}", env("BROKER_URL")).'
        )

    def opened() -> OpenedBroker:
        publisher = target.open()
        if not hasattr(publisher, "receive"):
            raise Misuse(f"{consumer.name} cannot be read: {consumer.broker!r} is no broker; name one in app.consume.")
        return OpenedBroker(cast(Broker, publisher), shared=target.shared)

    return opened
