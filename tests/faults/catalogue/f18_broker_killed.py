"""F18: NATS and RabbitMQ killed with SIGKILL while relays publish to them: what was marked as sent is there. And a
broker that is away for an hour.

NATS writes each message to its disk before it confirms (`sync_interval: always`). The queue of RabbitMQ is a durable
classic one: one of its quorum queues on a single node may find no leader if it is killed within seconds of its start;
those are killed by `tests/contracts/brokers`.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.faults.catalogue.killable import Killable, NatsStream, RabbitQueue
from tests.faults.finding import Finding
from tests.faults.trial import NAMES, Trial
from tests.servers.process import Unavailable
from twiceproof import App, Retry
from twiceproof.operations import block
from twiceproof.outbox.sending import MessageOrigin, Sending, make_messages, write_unordered
from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.base import scan_all

TITLE = "a broker killed while relays publish to it"
KILLS: dict[type[Killable], int] = {NatsStream: 100, RabbitQueue: 50}
SHORTER = {
    NatsStream: 1.0,
    RabbitQueue: 0.4,
}  # of its share is in a short run: each kill costs a start, of some seconds
PER_KILL = 400  # messages that are sent for each
WAITING = 100_000  # messages, for a broker that is away for an hour
UNDER_LOAD = "while it was publishing"
LATEST = 0.05  # seconds after the relay has begun
OFTEN = Retry(attempts=100_000, first=0.01, most=0.1, within="2d")


def run(trial: Trial, finding: Finding) -> None:
    for kind, full in KILLS.items():
        part = 1.0 if trial.share >= 1 else SHORTER[kind]
        kills = trial.times(round(part * full), len(trial.stores) if kind is NatsStream else 1)
        stores = trial.stores[: min(kills, len(trial.stores))]
        try:
            with kind() as broker:
                asyncio.run(broker.make())
                total = sum(killed(trial, finding, broker, store, -(-kills // len(stores))) for store in stores)
        except Unavailable as error:
            finding.skipped.append(str(error))
            continue
        finding.reach(f"kills, {kind.name}", kills, total)
    if finding.figures:
        control(trial, finding)
    away(trial, finding)


def away(trial: Trial, finding: Finding) -> None:
    """In simulated time, with a ledger on SQLite."""
    from tests.unit.outbox.test_outages import OutageStage, away_for_an_hour

    waiting = trial.times(WAITING)
    with trial.place("sqlite") as place:
        stage = OutageStage(f"sqlite:///{place.directory / 'claims.db'}", ManualClock())
        for sentence in away_for_an_hour(stage, waiting):
            finding.violated(f"a broker that was away for an hour, {waiting} messages: {sentence}")
        stage.close()
    finding.reach("messages that wait for an hour", waiting, waiting)


def killed(trial: Trial, finding: Finding, broker: Killable, store: str, kills: int) -> int:
    dice = trial.dice("broker", broker.name, store)
    with trial.place(store) as place, place.app() as app:
        declare(app, broker)
        sent = 0
        for _ in range(kills):
            send(app, store, sent, PER_KILL)
            sent += PER_KILL
            busy = kill_once(app, broker, dice.uniform(0.0, LATEST))
            finding.hit(UNDER_LOAD) if busy else finding.count("when all was published", 1)
        publish_rest(app)
        wrong = judged(app, broker, sent)
    for sentence in wrong:
        finding.violated(f"{broker.name}, {NAMES[store]}, seed {trial.seed}: {sentence}")
    return kills


def declare(app: App, broker: Killable) -> None:
    app.broker("main", broker.server.url, retry=OFTEN, patience=2.0)
    app.route("orders.*", to="main", place=broker.place)


def send(app: App, name: str, first: int, count: int) -> None:
    """`name` keeps the keys of the ledgers apart, whose messages are on one broker."""
    keys = [f"{name}-{number}" for number in range(first, first + count)]
    origin = MessageOrigin("faults")
    made = [make_messages(app.routing, Sending("orders.paid", key, key), key, origin)[0] for key in keys]
    for part in (made[:200], made[200:]):
        block(write_unordered(app.store, "default", part))


def kill_once(app: App, broker: Killable, after: float) -> bool:
    """Kill the server a moment after a relay has begun to publish; return whether it had not ended."""
    relay = app.relay()
    begun, ended = threading.Event(), threading.Event()
    target = relay.targets[0]
    ask = target._ask

    def asking(messages: Any) -> Any:
        begun.set()
        answers = ask(messages)
        ended.set()
        return answers

    target._ask = asking  # type: ignore[method-assign]
    relay.start()
    begun.wait(60)
    ended.wait(after)
    busy = not ended.is_set()
    broker.server.kill()
    relay.drain()
    relay.join(30)
    broker.server.start()
    return busy


def pending(app: App) -> Any:
    return app.store.scan("message", state="pending", limit=1).block().records


def publish_rest(app: App) -> None:
    relay = app.relay()
    relay.start()
    waited = threading.Event()
    for _ in range(1_200):
        if not pending(app) or waited.wait(0.1):
            break
    relay.drain()
    relay.join(30)


def judged(app: App, broker: Killable, sent: int) -> list[str]:
    marked = {record.at.space.rpartition("/")[2] for record in block(scan_all(app.store, "message", state="sent"))}
    there = asyncio.run(broker.keys())
    wrong = []
    if lost := sorted(marked - there):
        wrong.append(f"{len(lost)} of {sent} messages are marked as sent and not there: {lost[:5]}")
    if stuck := sent - len(marked):
        wrong.append(f"{stuck} of {sent} messages were not sent after the broker was back")
    return wrong


def control(trial: Trial, finding: Finding) -> None:
    """Messages that are marked as sent when they are handed over are lost with the broker."""
    from tests.faults.planted import outbox as bugs
    from twiceproof.outbox.relay import TargetRelay

    publish = TargetRelay._publish
    with trial.place(trial.stores[0]) as place, NatsStream() as broker:
        asyncio.run(broker.make())
        with place.app() as app:
            declare(app, broker)
            send(app, trial.stores[0], 0, PER_KILL)
            broker.server.kill()
            bugs.mark_before_confirm()
            try:
                app.relay().run(until_idle=True)
            finally:
                TargetRelay._publish = publish  # type: ignore[method-assign]
            broker.server.start()
            wrong = judged(app, broker, PER_KILL)
    lost = [sentence for sentence in wrong if "not there" in sentence]
    finding.control("marks that wait for the confirmation", lost[0] if lost else "")
