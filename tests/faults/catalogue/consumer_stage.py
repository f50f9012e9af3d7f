"""Queues in a file, consumers that die at a given point, and the outcome of each message."""

from __future__ import annotations

import asyncio  # imported before forks, so that children need not import them
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

from tests.acceptance.children import die
from tests.acceptance.places import Place
from tests.faults.catalogue.relay_stage import LONG_AFTER
from twiceproof import App
from twiceproof.brokers.base import Ack, BrokerFinding, Publication, QueueDelivery, Reject
from twiceproof.claims.claim import claim_of
from twiceproof.inbound.dead_letters import letters
from twiceproof.inbound.queues.admissions import InlineAdmission, QueueAdmission
from twiceproof.inbound.queues.reader import OpenedBroker, QueueReader
from twiceproof.operations import block
from twiceproof.stores.base import scan_all

# Where a consumer dies, in the order of what it does.
RECEIVED, CLAIMED, STARTED = "after it has received", "claimed, and nothing started", "started, and not recorded"
BEFORE_ACK, HALF, ACKED = "before it acknowledges", "in the middle of acknowledging", "after it has acknowledged"
POINTS = (RECEIVED, CLAIMED, STARTED, BEFORE_ACK, HALF, ACKED)
RUN, CLAIM, INLINE = "starts runs", "claims, then starts runs", "calls a function"
WAYS = (RUN, CLAIM, INLINE)

LOADED = (asyncio, uuid4)
VALID, POISON, BUSY = ("a", "b", "c"), "poison", "busy"
SETUP = "CREATE TABLE queue (id INTEGER PRIMARY KEY, place, key, body, times DEFAULT 0, settled DEFAULT '')"

At = Callable[[str], None]


class FileQueue:
    """A broker whose queues are a file. A process that opens it receives everything that is not settled."""

    dedupe = 0.0

    def __init__(self, place: Place, at: At = lambda point: None) -> None:
        self._db = sqlite3.connect(place.directory / "queue", isolation_level=None, timeout=60)
        self._at = at
        self._held: set[int] = set()

    def make(self) -> None:
        self._db.execute(SETUP)

    def post(self, rows: Sequence[tuple[str, str, bytes]]) -> None:
        self._db.executemany("INSERT INTO queue (place, key, body) VALUES (?, ?, ?)", rows)

    def publish(self, messages: Any, patience: float) -> list[Publication]:
        raise NotImplementedError

    def receive(self, place: str, limit: int, wait: float) -> list[QueueDelivery]:
        rows = self._db.execute("SELECT id, key, body FROM queue WHERE place = ? AND settled = ''", (place,)).fetchall()
        found = [
            QueueDelivery(place, body, {}, tag, key, tag, times=1) for tag, key, body in rows if tag not in self._held
        ]
        self._held |= {delivery.tag for delivery in found[:limit]}
        if found:
            self._at(RECEIVED)
        return found[:limit]

    def settle(self, settlements: Sequence[tuple[QueueDelivery, Any]]) -> None:
        self._at(BEFORE_ACK)
        for number, (delivery, word) in enumerate(settlements):
            if number == len(settlements) // 2:
                self._at(HALF)
            if isinstance(word, Ack | Reject):
                self._db.execute("UPDATE queue SET settled = 'yes' WHERE id = ?", (delivery.tag,))
        self._at(ACKED)

    def examine(self, places: Sequence[str] = ()) -> list[BrokerFinding]:
        return []

    def close(self) -> None:
        self._held.clear()

    def left(self) -> dict[str, list[str]]:
        rows = self._db.execute("SELECT place, key FROM queue WHERE settled = ''").fetchall()
        return {place: sorted(key for other, key in rows if other == place) for place, _ in rows}

    def end(self) -> None:
        self._db.close()


class ConsumerStage:
    """One store, and a queue for each case."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.wrong: list[str] = []

    # -- in processes of their own ---------------------------------------------------------------

    def app(self, case: str, way: str, *, key: Any = "{order[id]}") -> App:
        app = self.place.app()

        @app.flow(key=key, name="sync")
        def sync(order: dict[str, str]) -> None: ...

        if way == INLINE:
            app.consume(f"main/{case}", inline=True, key="{body[id]}")(lambda body: self.place.do(body["id"]))
        else:
            app.consume(f"main/{case}", start=sync, **({"key": "{body[id]}"} if way == CLAIM else {}))
        return app

    def prepare(self, cases: Sequence[tuple[str, str, str]]) -> None:
        queue = FileQueue(self.place)
        queue.make()
        for case, way, _ in cases:
            queue.post([(case, name, b'{"id": "%s"}' % f"{case}-{name}".encode()) for name in VALID])
            queue.post([(case, POISON, b"{ %s" % case.encode())])
            if way == CLAIM:
                queue.post([(case, BUSY, b'{"id": "%s"}' % f"{case}-{BUSY}".encode())])
                app = self.app(case, way)  # another consumer has it, and dies
                app.claim(f"queue.main.{case}", f"{case}-{BUSY}", repeat="safe").__enter__()
        queue.end()

    def consume(self, case: str, way: str, point: str) -> None:
        """Consume one queue, and die at the given point."""
        self.read(case, way, lambda reached: die() if reached == point else None)

    def recover(self, cases: Sequence[tuple[str, str, str]]) -> None:
        """Consume again after all leases have ended: what was not settled is delivered again."""
        for case, way, _ in cases:
            self.read(case, way, lambda reached: None)

    def read(self, case: str, way: str, at: At) -> None:
        with self.app(case, way) as app, _telling(at):
            queue = FileQueue(self.place, at)
            reader = QueueReader(app.runtime, app.consumers[f"main/{case}"], lambda: OpenedBroker(queue))
            while reader.round(0.0) or reader._held:
                if reader._held:
                    reader._wait_for_answers()
            reader.stop()
            reader.run()
            queue.end()

    # -- what became of it -----------------------------------------------------------------------

    def judge(self, cases: Sequence[tuple[str, str, str]]) -> list[str]:
        with self.place.app() as app:
            runs = Counter(claim_of(record).key for record in block(scan_all(app.store, "run")))
            kept = block(letters(app.store, "default"))
        queue = FileQueue(self.place)
        left = queue.left()
        queue.end()
        effects = Counter(self.place.effects())
        wrong = []
        for case, way, point in cases:
            about = f"a consumer that {way}, killed {point}"
            if left.get(case):
                wrong.append(f"{about}: {case} still has {left[case]}")
            mine = [letter for letter in kept if letter.hook == f"main/{case}"]
            if len([letter for letter in mine if "not JSON" in letter.reason]) != 1:
                wrong.append(f"{about}: the poison of {case} is lost")
            reviews = [letter for letter in mine if "NeedsReview" in letter.reason]
            for name in (*VALID, *([BUSY] if way == CLAIM else [])):
                done = effects[f"{case}-{name}"] if way == INLINE else runs[f"{case}-{name}"]
                if done != 1 and not (way == INLINE and done == 0 and reviews):
                    wrong.append(f"{about}: {case}-{name} was done {done} times, with {len(reviews)} in review")
        return wrong


@contextlib.contextmanager
def _telling(at: At) -> Iterator[None]:
    """Report what an admission is about to do, and has just done."""
    start, call = QueueAdmission._start, InlineAdmission._call

    def started(self: Any, event: Any) -> Any:
        at(CLAIMED)
        found = yield from start(self, event)
        at(STARTED)
        return found

    def called(self: Any, event: Any) -> Any:
        work = call(self, event)

        def told() -> Any:
            at(CLAIMED)
            found = work()
            at(STARTED)
            return found

        return told

    QueueAdmission._start, InlineAdmission._call = started, called  # type: ignore[method-assign]
    try:
        yield
    finally:
        QueueAdmission._start, InlineAdmission._call = start, call  # type: ignore[method-assign]


# -- delivered again and again -------------------------------------------------------------------


class DealtQueue:
    """A broker that delivers given messages in their order. Requeued ones come last."""

    dedupe = 0.0

    def __init__(self, numbers: Sequence[int]) -> None:
        self._ready = list(numbers)

    def publish(self, messages: Any, patience: float) -> list[Publication]:
        raise NotImplementedError

    def receive(self, place: str, limit: int, wait: float) -> list[QueueDelivery]:
        taken, self._ready = self._ready[:limit], self._ready[limit:]
        return [QueueDelivery(place, b'{"id": %d}' % number, {}, number, f"m{number}", number) for number in taken]

    def settle(self, settlements: Sequence[tuple[QueueDelivery, Any]]) -> None:
        self._ready += [delivery.tag for delivery, word in settlements if not isinstance(word, Ack)]

    def examine(self, places: Sequence[str] = ()) -> list[BrokerFinding]:
        return []

    def close(self) -> None:
        """Holds nothing."""


def random_key(order: dict[str, Any]) -> str:
    """The key function of the control: a different key for each delivery."""
    return f"{order['id']}-{uuid4().hex[:8]}"


def consume_dealt(place: Place, numbers: Sequence[int], *, control: bool = False) -> dict[str, int]:
    """Consume the deliveries given to this process; return the outcomes."""
    stage = ConsumerStage(place)
    with stage.app("dealt", RUN, key=random_key if control else "{order[id]}") as app:
        queue = DealtQueue(numbers)
        reader = QueueReader(app.runtime, app.consumers["main/dealt"], lambda: OpenedBroker(queue))
        while reader.round(0.0) or reader._held:
            if reader._held:
                reader._wait_for_answers()
        reader.stop()
        reader.run()
        return dict(reader.outcomes)


LATER = LONG_AFTER
