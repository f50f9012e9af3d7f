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
                one.run_once()
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
            relay.run_once()
        sender.join()
        while relay.run_once() <= 0:
            pass
        relay.close()
        assert Counter(broker.keys) == sent  # each once: no relay died
        assert broker.keys == [str(n) for n in range(1_000)]


AT_ONCE = (13, 13, 12, 12)  # senders in each of four processes


@pytest.mark.slow
@pytest.mark.parametrize("order", [None, "o"])
def test_the_same_key_fifty_times_at_once_from_four_processes_is_one_message(url: str, order: str | None) -> None:
    open_app(url, StandInBroker()).close()

    def outcomes(body: int) -> Counter[str]:
        children = [Child(_sending(url, count, {"body": body}, order)) for count in AT_ONCE]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.go()
        found = sum((Counter(child.hear()) for child in children), Counter[str]())
        assert [child.end() for child in children] == [0] * 4
        return found

    assert outcomes(0) == {"first": 1, "earlier": 49}
    assert outcomes(1) == {"mismatch": 50}


def _sending(url: str, count: int, body: dict[str, int], order: str | None) -> Callable[[Child], None]:
    def work(child: Child) -> None:
        with open_app(url, StandInBroker()) as app:
            outcomes, start = list[str](), threading.Barrier(count + 1)  # threads may append at once, and not count

            def send() -> None:
                start.wait()
                try:
                    sent = app.send("orders.paid", body, key="k", order=order)
                    outcomes.append("earlier" if sent.earlier else "first")
                except PayloadMismatch:
                    outcomes.append("mismatch")

            threads = [threading.Thread(target=send) for _ in range(count)]
            for thread in threads:
                thread.start()
            child.tell("ready")
            child.wait_for_go()
            start.wait()
            for thread in threads:
                thread.join()
            child.tell(outcomes)

    return work


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
    relay.run_once()
    assert relay.counts["published"] == 200
    assert len(asked) <= 8, asked
    asked.clear()
    pause = relay.run_once()
    assert len(asked) == 1
    assert pause >= 20.0  # three looks a minute
    relay.close()
