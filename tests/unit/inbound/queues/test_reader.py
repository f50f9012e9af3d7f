"""Readers: what is received, when it is acknowledged, and what happens while the store or the broker is away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.unit.inbound.queues.post_office import PostOffice, post_office, runs
from twiceproof import App, Resource
from twiceproof.brokers.base import Ack, Extend
from twiceproof.brokers.memory import MemoryBroker
from twiceproof.clock import system_clock
from twiceproof.errors import BrokerUnavailable, StoreUnavailable
from twiceproof.inbound.queues import reader as reader_module
from twiceproof.inbound.queues.reader import OpenedBroker, QueueReader
from twiceproof.inbound.queues.readers import QueueReaders
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.faulty_engine import FaultyEngine
from twiceproof.records import Address, Insert
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "FIRST_RETRY", 0.001)
    monkeypatch.setattr(reader_module, "LONGEST_RETRY", 0.01)


def consume_orders(app: App, **options: Any) -> None:
    @app.flow(key="order:{order[id]}", name="sync")
    def sync(order: dict[str, Any]) -> None: ...

    app.consume("main/orders", start=sync, **options)


@contextmanager
def reading(readers: QueueReaders) -> Iterator[None]:
    readers.start()
    try:
        yield
    finally:
        readers.drain()
        assert readers.join(5.0) == 0


class Gate(MemoryEngine):
    """A store that fails while it is shut."""

    shut = False

    def commit(self, batches: Any) -> Any:
        if self.shut:
            raise StoreUnavailable("shut")
        return super().commit(batches)

    def fetch(self, addresses: Any) -> Any:
        if self.shut:
            raise StoreUnavailable("shut")
        return super().fetch(addresses)


@pytest.fixture
def gate() -> Gate:
    return Gate(system_clock)


@pytest.fixture
def shop(gate: Gate) -> Iterator[PostOffice]:
    with App(GroupedStore(FaultyEngine(gate))) as app, post_office(app) as office:
        consume_orders(app)
        yield office


def test_nothing_is_acknowledged_while_the_store_is_away(
    shop: PostOffice, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "twiceproof.consume")
    for number in range(5):
        shop.post({"id": number}, f"m{number}")
    reader = shop.reader()
    gate.shut = True
    received = [reader.round(0.0) for _ in range(5)]
    assert received == [5, 0, 0, 0, 0] and len(shop.left) == 5
    assert [stored.times for stored in shop.queues.queues["orders"]] == [1] * 5
    gate.shut = False
    shop.deliver_again()
    assert shop.drain(reader)["new"] == 5 and shop.left == []
    lines = [record.getMessage() for record in caplog.records if "the store failed" in record.getMessage()]
    assert len(lines) == 2 and lines[1].endswith("it is back")


class Cut(MemoryBroker):
    """A broker that is away for so many calls."""

    away = 0

    def receive(self, place: str, limit: int, wait: float) -> Any:
        self._fail()
        return super().receive(place, limit, wait)

    def settle(self, settlements: Any) -> None:
        self._fail()
        super().settle(settlements)

    def _fail(self) -> None:
        if self.away > 0:
            self.away -= 1
            raise BrokerUnavailable("it is away", missing=False)


def cut_reader(office: PostOffice) -> tuple[QueueReader, Cut]:
    broker = Cut(office.queues)
    reader = QueueReader(office.app.runtime, office.app.consumers["main/orders"], lambda: OpenedBroker(broker))
    office.readers.append(reader)
    return reader, broker


def test_a_broker_that_is_away_costs_one_line(app: App, office: PostOffice, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "twiceproof.consume")
    consume_orders(app)
    reader, broker = cut_reader(office)
    broker.away = 4
    office.post({"id": 1}, "m1")
    for _ in range(5):
        reader.round(0.0)
    assert reader.outcomes == {"new": 1} and office.left == []
    assert len(caplog.records) == 2 and "it is back" in caplog.records[1].getMessage()


def test_a_broker_that_was_not_asked_is_not_called_back(
    app: App, office: PostOffice, caplog: pytest.LogCaptureFixture
) -> None:
    """After its connection broke, an ordered consumer waits until its deliveries are free again."""
    caplog.set_level(logging.INFO, "twiceproof.consume")
    consume_orders(app, order="{body[id]}")
    reader, broker = cut_reader(office)
    office.post({"id": 1}, "m1")
    broker.away = 1
    reader.round(0.0)
    reader._not_before = app.clock.monotonic() + 60.0
    reader.round(0.0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "will try again" in line
    reader._not_before = 0.0
    reader.round(0.0)
    assert "it is back" in caplog.records[1].getMessage()


def test_the_pause_before_the_next_try_grows_and_is_bounded(
    app: App, office: PostOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    consume_orders(app)
    reader, broker = cut_reader(office)
    monkeypatch.setattr(reader_module, "LONGEST_RETRY", 30.0)
    reader._broker_outage = reader_module._Outage("away")
    reader._broker_outage._pause = 0.5
    pauses: list[float] = []
    monkeypatch.setattr(reader, "_pause", pauses.append)
    broker.away = 8
    for _ in range(8):
        reader.round(0.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_lost_settlement_is_only_a_redelivery(app: App, office: PostOffice) -> None:
    consume_orders(app)
    office.post({"id": 1}, "m1")
    reader, broker = cut_reader(office)
    reader._receive(0.0)
    reader._wait_for_answers()
    broker.away = 1
    assert reader.round(0.0) == 0 and len(office.left) == 1  # admitted, and the settlement did not get through
    assert office.drain(reader)["duplicate"] == 1 and office.left == [] and runs(app) == 1


def test_the_acknowledgement_comes_after_the_claim(app: App, office: PostOffice) -> None:
    consume_orders(app)
    known: list[int] = []

    class Looking(MemoryBroker):
        def settle(self, settlements: Any) -> None:
            if any(isinstance(word, Ack) for _, word in settlements):
                known.append(len(app.runs(flow="sync")))
            super().settle(settlements)

    office.post({"id": 1}, "m1")
    broker = Looking(office.queues)
    reader = QueueReader(app.runtime, app.consumers["main/orders"], lambda: OpenedBroker(broker))
    office.readers.append(reader)
    office.drain(reader)
    assert known == [1]


def test_no_more_than_prefetch_is_held(app: App, office: PostOffice) -> None:
    consume_orders(app, prefetch=3)
    asked: list[int] = []

    class Counting(MemoryBroker):
        def receive(self, place: str, limit: int, wait: float) -> Any:
            asked.append(limit)
            return super().receive(place, limit, wait)

    for number in range(7):
        office.post({"id": number}, f"m{number}")
    broker = Counting(office.queues)
    reader = QueueReader(app.runtime, app.consumers["main/orders"], lambda: OpenedBroker(broker))
    office.readers.append(reader)
    office.drain(reader)
    assert reader.outcomes == {"new": 7} and max(asked) == 3


def test_a_batch_shares_its_commits(gate: Gate, shop: PostOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    inner = gate.commit
    monkeypatch.setattr(gate, "commit", lambda batches: (commits.append(len(batches)), inner(batches))[1])
    for number in range(200):
        shop.post({"id": number}, f"m{number}")
    assert shop.drain() == {"new": 200}
    assert len(commits) <= 20, commits


def test_a_queue_whose_messages_have_no_key_is_refused(app: App, office: PostOffice) -> None:
    app.consume("main/orders", inline=True)(lambda body: None)
    office.post({"id": 1})
    reader = office.reader()
    reader.run()
    assert "give key=" in reader.refused and len(office.left) == 1 and office.letters() == []


def test_one_message_without_a_key_is_a_dead_letter_among_others(app: App, office: PostOffice) -> None:
    app.consume("main/orders", inline=True)(lambda body: None)
    office.post({"id": 1}, "m1")
    office.post({"id": 2})
    assert office.drain() == {"new": 1, "poison": 1} and len(office.letters()) == 1


def test_a_long_function_keeps_its_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as long as the broker reserves it for us, by a clock that only this test moves."""
    monkeypatch.setattr(reader_module, "SHORT_WAIT", 0.01)
    clock, go, words = ManualClock(), threading.Event(), []

    class Watching(MemoryBroker):
        def settle(self, settlements: Any) -> None:
            words.extend(word for _, word in settlements)
            super().settle(settlements)

    with App("memory://", clock=clock) as app:
        office = PostOffice(app)
        office.queues.lease = 10.0
        app.consume("main/orders", inline=True)(lambda body: go.wait(30))
        office.post({"id": 1}, "m1")
        broker = Watching(office.queues, clock=clock)
        reader = QueueReader(app.runtime, app.consumers["main/orders"], lambda: OpenedBroker(broker))
        for _ in range(25):
            reader.round(0.0)
            clock.advance(4.0)
        assert sum(isinstance(word, Extend) for word in words) >= 10
        go.set()
        office.drain(reader)
        reader.abandon()
    assert words[-1] == Ack() and office.left == [] and reader.outcomes == {"new": 1}


def test_redeliveries_are_counted(app: App, office: PostOffice) -> None:
    consume_orders(app)
    office.post({"id": 1}, "m1")
    office.broker.receive("orders", 1, 0.0)
    office.broker.close()
    reader = office.reader()
    office.drain(reader)
    assert reader.redelivered == 1


def test_readers_end_after_what_they_have_received(app: App, office: PostOffice) -> None:
    consume_orders(app)
    for number in range(20):
        office.post({"id": number}, f"m{number}")
    readers = app.consuming()
    with reading(readers):
        while readers.readers[0].outcomes["new"] < 20:
            threading.Event().wait(0.01)
    assert office.left == [] and runs(app) == 20


def test_a_fault_of_one_reader_leaves_the_others(app: App, office: PostOffice) -> None:
    consume_orders(app)
    app.consume("main/mails", inline=True)(lambda body: None)
    office.queues.places = {"orders"}
    office.post({"id": 1}, "m1")
    readers = app.consuming()
    with reading(readers):
        while not readers.readers[0].outcomes["new"]:
            threading.Event().wait(0.01)
    assert office.left == []


def test_a_worker_reads_the_queues_beside_its_runs(app: App, office: PostOffice) -> None:
    seen: list[Any] = []

    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, Any]) -> None:
        seen.append(order["id"])
        worker.drain()

    app.consume("main/orders", start=sync)
    office.post({"id": 17}, "m1")
    worker = app.worker()
    assert worker.run(patience=5.0) == 0
    assert seen == [17] and office.left == []


def test_a_worker_of_some_flows_or_until_idle_reads_no_queue(app: App, office: PostOffice) -> None:
    consume_orders(app)
    office.post({"id": 17}, "m1")
    app.worker(flows=["sync"]).run(until_idle=True)
    app.worker().run(until_idle=True)
    assert len(office.left) == 1


def test_metrics_have_deliveries_by_consumer_and_outcome(app: App, office: PostOffice) -> None:
    from twiceproof.server.monitoring import WorkMetrics

    consume_orders(app)
    office.post({"id": 17}, "m1")
    worker = app.worker()
    (readers,) = [companion for companion in worker.beside if isinstance(companion, QueueReaders)]
    with reading(readers):
        while not readers.readers[0].outcomes["new"]:
            threading.Event().wait(0.01)
    text = WorkMetrics().text(worker).decode()
    assert 'twiceproof_deliveries_total{consumer="main/orders",outcome="new"} 1.0' in text
    assert 'twiceproof_redeliveries_total{consumer="main/orders"} 0.0' in text
    assert 'twiceproof_queue_waiting{consumer="main/orders"} 1.0' in text
    worker.run(until_idle=True)


def test_what_waits_in_the_queue_is_counted_now_and_then() -> None:
    clock = ManualClock()
    with App("memory://", clock=clock) as app, post_office(app) as office:
        app.consume("main/orders", inline=True)(lambda body: None)
        for number in range(3):
            office.post({"id": number}, key=f"m{number}")
        reader = office.reader()
        office.drain(reader)
        assert reader.waiting == 3  # before it received anything
        clock.advance(20)
        reader.round(0.0)
        assert reader.waiting == 0


def test_a_message_carries_one_key_from_its_flow_to_its_consumer(app: App, office: PostOffice) -> None:
    sent: list[str] = []
    keys: list[tuple[str, str]] = []
    office.queues.places = {"orders"}
    app.route("orders.paid", to="main", place="orders")

    @app.flow(key="order:{order}")
    def pay(order: int) -> None:
        sent.append(app.send("orders.paid", {"order": order}).key)

    @app.consume("main/orders", inline=True)
    def paid(body: dict[str, Any], headers: dict[str, str], delivery: dict[str, Any]) -> None:
        keys.append((delivery["key"], headers["correlation-id"]))

    pay(17)
    app.relay().run(until_idle=True)
    office.drain()
    assert keys == [(sent[0], app.runs(flow="pay")[0].run)]


def test_a_large_value_travels_as_a_reference_that_a_consumer_reads(app: App, office: PostOffice) -> None:
    office.queues.places = {"orders"}
    app.route("orders.reported", to="main", place="orders")
    read: list[int] = []

    @app.step(repeat="safe")
    def render(order: int) -> Resource:
        return app.resource(b"." * 1_000_000, name=f"{order}.pdf")

    @app.flow(key="report:{order}")
    def send_report(order: int) -> None:
        app.send("orders.reported", {"order": order, "report": render(order)})

    @app.flow(key="archive:{order}")
    def archive(order: int, report: Resource) -> None:
        read.append(len(report.read()))

    app.consume("main/orders", start=archive)
    send_report(17)
    app.relay().run(until_idle=True)
    assert len(office.left[0]) < 1_000
    office.drain()
    app.worker(flows=["archive"]).run(until_idle=True)
    assert read == [1_000_000]


def test_readers_without_a_worker_bring_back_claims_of_the_future() -> None:
    """Such as the slot of an ordered consumer that died while the store's clock was an hour ahead."""
    clock, at = ManualClock(), Address("default/orders/slot", "claim", "self")
    with App(GroupedStore(MemoryEngine(clock), clock=clock), clock=clock) as app, post_office(app):
        consume_orders(app)
        readers = app.consuming()
        clock.set_wall(3_600.0)
        app.store.write(Insert(at, "{}", state="held", draw=True, lease=60.0)).block()
        readers._check_store_clock()
        clock.set_wall(-3_600.0)
        readers._check_store_clock()
        clock.advance(60.0)
        readers._check_store_clock()
        found = app.store.read(at).block()
        assert found.record is not None and found.record.lease_until is not None
        assert found.record.lease_until - found.now <= 60.0


def test_a_large_body_that_went_as_a_reference_is_read_by_a_consumer(app: App, office: PostOffice) -> None:
    office.queues.places = {"orders"}
    app.route("reports.*", to="main", place="orders", large="reference")
    read: list[int] = []

    @app.flow(key="report:{order}")
    def send_report(order: int) -> None:
        app.send("reports.made", "." * 300_000)

    @app.consume("main/orders", inline=True)
    def archive(report: Resource) -> None:
        read.append(len(report.read(app)))

    send_report(17)
    app.relay().run(until_idle=True)
    assert office.drain() == {"new": 1}
    assert read == [300_002]
