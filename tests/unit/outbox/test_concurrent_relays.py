"""Many senders and many relays on one ledger: one message per key, each order key in order, none left behind."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.children import Child
from tests.unit.outbox.stand_in import NO_ROUTE, SILENCE, StandInBroker
from twiceproof import App, PayloadMismatch, Retry
from twiceproof.brokers.base import OutgoingMessage, Publication
from twiceproof.outbox.relay import TargetRelay

SENDERS, KEYS, EACH = 4, 20, 50


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("postgres_dsn")) if request.param == "postgres" else f"sqlite:///{tmp_path}/s.db"


def open_app(url: str, broker: Any) -> App:
    app = App(url)
    app.broker("main", broker, retry=Retry(attempts=10_000, first=0, most=0))
    app.route("orders.*", to="main")
    return app


class MoodyBroker(StandInBroker):
    """Refuses, or does not answer, at random; several relays use it at once."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._dice = random.Random(seed)
        self._mutex = threading.Lock()

    def publish(self, messages: Any, patience: float) -> list[Publication]:
        with self._mutex:
            return super().publish(messages, patience)

    def _one(self, message: OutgoingMessage, stopped: set[str]) -> Publication:
        mood = self._dice.random()
        if mood < 0.2 and message.order not in stopped:
            self.answers[message.key] = [NO_ROUTE if mood < 0.1 else SILENCE]
        return super()._one(message, stopped)


def together(*works: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_each_order_key_is_published_in_order_by_four_relays_while_it_is_sent_to(url: str) -> None:
    broker = MoodyBroker(7)
    sent: dict[str, list[str]] = {f"o{n}": [] for n in range(KEYS)}
    locks = {order: threading.Lock() for order in sent}
    over = threading.Event()

    def send(number: int) -> None:
        with open_app(url, broker) as app:
            dice = random.Random(number)
            for n in range(EACH * KEYS // SENDERS):
                order = f"o{dice.randrange(KEYS)}"
                key = f"{number}-{n}"
                with locks[order]:  # so that the test knows the order of the commits
                    app.send("orders.paid", {}, key=key, order=order)
                    sent[order].append(key)

    def relay() -> None:
        with open_app(url, broker) as app:
            target = app.routing.targets["main"]
            one = TargetRelay(app.store, target, lambda: ["default"], clock=app.clock, roll=random.random)
            while not (over.is_set() and _is_empty(app)):
                one.turn()
            one.close()

    relays = [threading.Thread(target=relay) for _ in range(4)]
    for thread in relays:
        thread.start()
    together(*(lambda number=number: send(number) for number in range(SENDERS)))
    over.set()
    for thread in relays:
        thread.join()
    for order, keys in sent.items():
        seen = [message.key for message in broker.taken if message.order == order]
        assert list(dict.fromkeys(seen)) == keys


def _is_empty(app: App) -> bool:
    return not any(app.store.scan("message", state=state).block().records for state in ("pending", "lane"))


@pytest.mark.slow
def test_a_message_that_races_the_removal_of_its_lane_is_never_stranded(url: str) -> None:
    broker = StandInBroker()
    sent = Counter[str]()
    with ExitStack() as stack:
        app, other = (stack.enter_context(open_app(url, broker)) for _ in range(2))
        target = app.routing.targets["main"]
        relay = TargetRelay(app.store, target, lambda: ["default"], clock=app.clock, roll=random.random)

        def send() -> None:
            for n in range(1_000):
                other.send("orders.paid", {}, key=str(n), order="o")
                sent[str(n)] += 1

        sender = threading.Thread(target=send)
        sender.start()
        while sender.is_alive():
            relay.turn()
        sender.join()
        while relay.turn() <= 0:
            pass
        relay.close()
        assert Counter(broker.keys) == sent  # each once: no relay died
        assert broker.keys == [str(n) for n in range(1_000)]


@pytest.mark.slow
def test_the_same_key_from_four_processes_at_once_is_one_message(url: str) -> None:
    open_app(url, StandInBroker()).close()

    def send(body: int) -> Callable[[Child], None]:
        def work(child: Child) -> None:
            with open_app(url, StandInBroker()) as app:
                child.tell("ready")
                child.wait_for_go()
                outcomes = Counter[str]()
                for n in range(12):
                    for order in (None, "o"):
                        try:
                            sent = app.send("orders.paid", {"n": n, "body": body}, key=str(n), order=order)
                            outcomes["earlier" if sent.earlier else "first"] += 1
                        except PayloadMismatch:
                            outcomes["mismatch"] += 1
                child.tell(outcomes)

        return work

    children = [Child(send(0)) for _ in range(4)]
    for child in children:
        assert child.hear() == "ready"
    for child in children:
        child.go()
    found = sum((Counter(child.hear()) for child in children), Counter[str]())
    assert [child.end() for child in children] == [0] * 4
    assert found == {"first": 24, "earlier": 72}
    other = Child(send(1))
    assert other.hear() == "ready"
    other.go()
    assert other.hear() == {"mismatch": 24}
    other.end()


@pytest.fixture
def counted(postgres_dsn: str) -> Iterator[tuple[App, list[str]]]:
    app = open_app(postgres_dsn, StandInBroker())
    asked: list[str] = []
    engine = app.store.engine  # type: ignore[attr-defined]
    for link in {id(one): one for one in (engine._commits, engine._reads, engine._side)}.values():
        inner = link.ask

        def ask(sql: bytes, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            asked.append(sql.decode())
            return inner(sql, *args, **kwargs)

        link.ask = ask
    yield app, asked
    app.close()


@pytest.mark.server
def test_a_relay_asks_few_statements_per_hundred_messages_and_few_when_idle(counted: tuple[App, list[str]]) -> None:
    app, asked = counted
    target = app.routing.targets["main"]
    relay = TargetRelay(app.store, target, lambda: ["default"], clock=app.clock, roll=random.random)
    for n in range(100):
        app.send("orders.paid", {}, key=str(n))
    for n in range(100):
        app.send("orders.paid", {}, key=f"o{n}", order="o")
    asked.clear()
    relay.turn()
    assert relay.counts["published"] == 200
    assert len(asked) <= 8, asked
    asked.clear()
    pause = relay.turn()
    assert len(asked) == 1
    assert pause >= 20.0  # three looks a minute
    relay.close()
