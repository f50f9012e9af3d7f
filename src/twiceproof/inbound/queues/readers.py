"""The readers of a process: one for each consumer, on a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from ...brokers.base import Broker
from ...claims.claim import CLAIM, HELD
from ...errors import Misuse, StoreError
from ...flows.runtime import Runtime
from ...flows.workers.store_clock import StoreClock
from ...operations import block
from ...outbox.routing import Target
from ...threads import ThreadGroup
from .consumer import Consumer
from .reader import SHORT_WAIT, WAIT, OpenedBroker, QueueReader

__all__ = ["QueueReaders", "broker_opener", "make_readers"]


log = logging.getLogger("twiceproof.consume")


class QueueReaders:
    """The readers of a process, each on a thread. They run beside a worker, or alone."""

    def __init__(self, readers: Sequence[QueueReader], store_clock: StoreClock) -> None:
        self.readers = readers
        self._store_clock = store_clock
        self._threads = ThreadGroup()
        self.draining = False

    def start(self) -> None:
        for reader in self.readers:
            if reader.consumer.function is None:
                reader.consumer.flow.refuse_best_effort()
        for reader in self.readers:
            self._threads.start(partial(self._run, reader), f"twiceproof-consume-{reader.consumer.name}")

    def _run(self, reader: QueueReader) -> None:
        try:
            reader.run()
        except Exception as error:  # noqa: BLE001 - logged, and the others go on
            reader.refused = reader.refused or f"{reader.consumer.name} has stopped: {error}"
            (log.error if isinstance(error, Misuse) else log.exception)("%s", reader.refused)

    def drain(self) -> None:
        """Receive nothing more. May be called from any thread and from signal handlers."""
        self.draining = True
        for reader in self.readers:
            reader.stop()

    def stop(self) -> None:
        """Stop without waiting: unsettled deliveries come again."""
        self.draining = True
        for reader in self.readers:
            reader.abandon()

    def join(self, patience: float) -> int:
        """Wait for received deliveries to be settled, at most so many seconds. Return how many readers have not ended
        by then.
        """
        left = self._threads.join(patience)
        if left:
            self.stop()
            self._threads.join(WAIT)
        return left

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
        while not self.draining and self._threads.join(SHORT_WAIT):
            self._check_store_clock()
        return self.join(patience)

    def _check_store_clock(self) -> None:
        """Bring back claims of the future, as a worker does; there may be none."""
        if self._store_clock.is_due:
            with suppress(StoreError):  # it is checked again later
                block(self._store_clock.check())


def make_readers(
    runtime: Runtime, consumers: Mapping[str, Consumer], targets: Mapping[str, Target], names: Collection[str] = ()
) -> QueueReaders:
    """Return readers for these consumers, or for all."""
    unknown = sorted(set(names) - set(consumers))
    if unknown:
        known = ", ".join(sorted(consumers)) or "none"
        raise Misuse(f"No consumer is called {unknown[0]!r}; those that are declared: {known}.")
    chosen = [consumers[name] for name in consumers if not names or name in names]
    readers = [QueueReader(runtime, one, broker_opener(one, targets)) for one in chosen]
    return QueueReaders(readers, StoreClock(runtime.store, runtime.clock, ((CLAIM, HELD),), name="deliveries"))


def broker_opener(consumer: Consumer, targets: Mapping[str, Target]) -> Callable[[], OpenedBroker]:
    """Return a function that opens a consumer's broker. Raises Misuse if it is not declared."""
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
