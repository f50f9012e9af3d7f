"""A queue in memory, an app that consumes it, and a reader that is driven round by round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from twiceproof import App
from twiceproof.brokers.base import OutgoingMessage
from twiceproof.brokers.memory import MemoryBroker, MemoryQueues
from twiceproof.inbound.dead_letters import letters
from twiceproof.inbound.queues.reader import OpenedBroker, QueueReader
from twiceproof.inbound.replay import replay_letter
from twiceproof.operations import block


class PostOffice:
    """`queue` is main/orders. Messages are not deduplicated by the broker, so that a test may publish one twice."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.queues = MemoryQueues(dedupe=0.0)
        self.broker = MemoryBroker(self.queues, clock=app.clock)
        self.readers: list[QueueReader] = []
        self.calls: Counter[str] = Counter()
        app.broker("main", self.broker)

    def post(
        self, body: Any, key: str = "", *, place: str = "orders", kind: str = "application/json", **more: str
    ) -> None:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        message = OutgoingMessage(place, key or "no key", content, headers=headers, content_type=kind)
        (outcome,) = self.broker.publish([message], 5.0)
        assert type(outcome).__name__ == "Confirmed", outcome
        if not key:  # a sender that gives no id
            self.queues.queues[place][-1].message = msgspec.structs.replace(message, key="")

    def reader(self, name: str = "main/orders", app: App | None = None) -> QueueReader:
        app = app or self.app
        broker = MemoryBroker(self.queues, clock=app.clock)
        made = QueueReader(app.runtime, app.consumers[name], lambda: OpenedBroker(broker))
        self.readers.append(made)
        return made

    def drain(self, reader: QueueReader | None = None) -> Counter[str]:
        """Read until nothing is delivered and nothing is held; return the outcomes."""
        reader = reader or self.reader()
        while reader.round(0.0) or reader._held:
            if reader._held:
                reader._wait_for_answers()
        return reader.outcomes

    @property
    def left(self) -> list[bytes]:
        return [stored.message.body for stored in self.queues.queues["orders"]]

    @property
    def rejected(self) -> list[bytes]:
        return [stored.message.body for stored in self.queues.rejected["orders"]]

    def deliver_again(self) -> None:
        """What was requeued is delivered at once."""
        for stored in self.queues.queues["orders"]:
            stored.visible = self.app.clock.monotonic()

    def letters(self) -> list[Any]:
        return block(letters(self.app.store, "default"))

    def replay(self, name: str) -> list[str]:
        return [one.outcome for one in block(replay_letter(self.app.runtime, self.app.consumers, name))]

    def close(self) -> None:
        for reader in self.readers:
            reader.stop()
            reader.run()


@contextmanager
def post_office(app: App) -> Iterator[PostOffice]:
    office = PostOffice(app)
    try:
        yield office
    finally:
        office.close()


def runs(app: App, names: Collection[str] = ()) -> int:
    """Carry out what is due; return how many runs were begun."""
    worker = app.worker(flows=names)
    worker.run(until_idle=True)
    return worker.begun
