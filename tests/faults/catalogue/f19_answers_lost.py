"""F19: confirmations and acknowledgements that are lost, one by one, between a broker and a relay or a consumer.

The broker is a list in memory, so that each answer can be lost on its own; `tests/contracts/brokers` loses those of
real brokers by cutting their connections.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.acceptance.places import Place
from tests.faults.catalogue.relay_stage import apart
from tests.faults.finding import Finding
from tests.faults.planted import outbox as bugs
from tests.faults.trial import NAMES, Trial
from twiceproof import Retry
from twiceproof.brokers.base import Confirmed, OutgoingMessage, Publication, QueueDelivery, Requeue, Unconfirmed
from twiceproof.claims.claim import claim_of
from twiceproof.inbound.queues.reader import OpenedBroker, QueueReader
from twiceproof.operations import block
from twiceproof.stores.base import scan_all

TITLE = "confirmations and acknowledgements lost"
LOST = 1_000
PER_ROUND = 200  # messages
TAKEN, NOT_TAKEN, ACK = "confirmation of a message that was taken", "of one that was not taken", "acknowledgement"
KINDS = (TAKEN, NOT_TAKEN, ACK)
OFTEN = Retry(attempts=100_000, first=0.001, most=0.002, within="2d")


class LosingBroker:
    """Loses about every third answer. `taken` are the keys of all that it was given and kept, in order."""

    dedupe = 0.0

    def __init__(self, seed: str) -> None:
        self._dice = random.Random(seed)
        self._queue: dict[int, OutgoingMessage] = {}
        self._held: set[int] = set()
        self._times: Counter[int] = Counter()
        self._number = 0
        self.taken: list[str] = []
        self.lost: Counter[str] = Counter()

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        return [self._publish(message) for message in messages]

    def _publish(self, message: OutgoingMessage) -> Publication:
        chance = self._dice.random()
        if chance < 0.15:
            self.lost[NOT_TAKEN] += 1
            return Unconfirmed("no answer")
        self._number += 1
        self._queue[self._number] = message
        self.taken.append(message.key)
        if chance < 0.3:
            self.lost[TAKEN] += 1
            return Unconfirmed("no answer")
        return Confirmed(str(self._number))

    def receive(self, place: str, limit: int, wait: float) -> list[QueueDelivery]:
        numbers = [number for number in self._queue if number not in self._held][:limit]
        self._held |= set(numbers)
        self._times.update(numbers)
        return [self._delivery(place, number) for number in numbers]

    def _delivery(self, place: str, number: int) -> QueueDelivery:
        sent, times = self._queue[number], self._times[number]
        return QueueDelivery(
            place, sent.body, {}, number, sent.key, number, times=times, content_type=sent.content_type
        )

    def settle(self, settlements: Sequence[tuple[QueueDelivery, Any]]) -> None:
        for delivery, word in settlements:
            self._held.discard(delivery.tag)
            if isinstance(word, Requeue):
                continue
            if self._dice.random() < 0.3:
                self.lost[ACK] += 1  # it is delivered again
            else:
                self._queue.pop(delivery.tag, None)

    def examine(self, places: Sequence[str] = ()) -> list[Any]:
        return []

    @property
    def empty(self) -> bool:
        return not self._queue

    def close(self) -> None:
        self._held.clear()


def run(trial: Trial, finding: Finding) -> None:
    least = trial.times(LOST)
    for store in trial.stores:
        lost = 0
        while lost < -(-least // len(trial.stores)):
            with trial.place(store) as place:
                told = played(place, f"{trial.seed} {store} {lost}")
            lost += sum(told["lost"].values())
            for kind, count in told["lost"].items():
                for _ in range(count):
                    finding.hit(kind)
            for sentence in told["wrong"]:
                finding.violated(f"{NAMES[store]}, seed {trial.seed}: {sentence}")
            finding.count("answers lost", sum(told["lost"].values()))
    finding.reach("answers lost", least, finding.counts.get("answers lost", 0))
    control(trial, finding)


def played(place: Place, seed: str, plant: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Send, publish and consume in a process of its own; return what was lost, and what is wrong."""
    ended = apart(partial(_play, place, seed, plant))
    if ended:
        return {"lost": dict.fromkeys(KINDS, 1), "wrong": [f"a relay and a consumer ended with {ended}"]}
    told: dict[str, Any] = json.loads((place.directory / "told").read_text())
    return told


def _play(place: Place, seed: str, plant: Callable[[], None]) -> None:
    plant()
    broker = LosingBroker(seed)
    keys = [f"m{number}" for number in range(PER_ROUND)]
    with place.app() as app:
        app.broker("main", broker, retry=OFTEN)
        app.route("orders.*", to="main", place="orders")

        @app.flow(key="{body[id]}", name="sync")
        def sync(body: dict[str, str]) -> None: ...

        app.consume("main/orders", start=sync)
        for key in keys:
            app.send("orders.paid", {"id": key}, key=key)
        relay_all(app)
        outcomes = consume_all(app, broker)
        runs = Counter(claim_of(record).key for record in block(scan_all(app.store, "run")))
    wrong = judged(keys, broker, runs, outcomes)
    (place.directory / "told").write_text(json.dumps({"lost": dict(broker.lost), "wrong": wrong}))


def relay_all(app: Any) -> None:
    """Relay until nothing is pending: messages without an answer are due again after a moment."""
    while app.store.scan("message", state="pending", limit=1).block().records:
        app.relay().run(until_idle=True)


def consume_all(app: Any, broker: LosingBroker) -> Counter[str]:
    reader = QueueReader(app.runtime, app.consumers["main/orders"], lambda: OpenedBroker(broker, shared=True))  # type: ignore[arg-type]
    while not broker.empty:
        reader.round(0.0)
    reader.stop()
    reader.run()
    return reader.outcomes


def judged(keys: list[str], broker: LosingBroker, runs: Counter[str], outcomes: Counter[str]) -> list[str]:
    wrong = []
    if lost := sorted(set(keys) - set(broker.taken)):
        wrong.append(f"never published: {lost}")
    if foreign := sorted(set(broker.taken) - set(keys)):
        wrong.append(f"published under a key that no one sent: {foreign}")
    more = len(broker.taken) - len(keys)
    if not lost and more > broker.lost[TAKEN]:
        wrong.append(f"{more} published again, though {broker.lost[TAKEN]} confirmations were lost")
    if runs != Counter(set(broker.taken)):
        wrong.append(f"{len(set(broker.taken))} messages became {sum(runs.values())} runs")
    again = more + broker.lost[ACK]
    if outcomes != {"new": len(set(broker.taken)), "duplicate": again}:
        wrong.append(f"{again} came again, and the outcomes were {dict(outcomes)}")
    return wrong


def control(trial: Trial, finding: Finding) -> None:
    """A relay that treats a missing answer as a confirmation loses the messages that the broker did not take."""
    with trial.place(trial.stores[0]) as place:
        told = played(place, str(trial.seed), bugs.silence_is_sent)
    lost = [sentence for sentence in told["wrong"] if "never published" in sentence]
    finding.control("publishing again after silence", "messages were lost" if lost else "")
