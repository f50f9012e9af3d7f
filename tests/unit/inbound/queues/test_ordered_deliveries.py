"""Messages of one order key are processed one after the other, others beside them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.unit.inbound.queues.post_office import PostOffice, runs
from twiceproof import App, Misuse, NotDone, by
from twiceproof.brokers.base import Ack, Broker, Confirmed, OutgoingMessage, QueueDelivery, Requeue
from twiceproof.brokers.memory import MemoryBroker, MemoryQueues
from twiceproof.brokers.open import open_broker
from twiceproof.claims.claim import claim_of
from twiceproof.errors import StoreUnavailable
from twiceproof.inbound.queues import ordered_deliveries
from twiceproof.inbound.queues.ordered_deliveries import OrderedDeliveries
from twiceproof.inbound.queues.reader import OpenedBroker, QueueReader
from twiceproof.operations import block
from twiceproof.stores.base import scan_all

KEYS, EACH, READERS = 6, 8, 3
ORDER = "{body[key]}"


class Diary:
    """What a consumer's function saw: the ends by key, how many ran at once, and of one key at once."""

    def __init__(self, fails: Callable[[dict[str, Any]], bool]) -> None:
        self.ends: dict[str, list[int]] = defaultdict(list)
        self.calls: Counter[tuple[str, int]] = Counter()
        self.now: Counter[str] = Counter()
        self.most = self.most_of_a_key = 0
        self._fails = fails
        self._mutex = threading.Lock()
        self._pause = threading.Event()

    def note(self, body: dict[str, Any]) -> None:
        key, n = body["key"], body["n"]
        with self._mutex:
            self.calls[key, n] += 1
            first = self.calls[key, n] == 1
            self.now[key] += 1
            self.most = max(self.most, self.now.total())
            self.most_of_a_key = max(self.most_of_a_key, self.now[key])
        self._pause.wait(0.002)  # lets others run: two of one key would be seen together
        with self._mutex:
            self.now[key] -= 1
            if first and self._fails(body):
                raise NotDone("not yet")
            self.ends[key].append(n)

    @property
    def count(self) -> int:
        return sum(map(len, self.ends.values()))

    @property
    def inversions(self) -> int:
        pairs = [pair for ends in self.ends.values() for pair in pairwise(ends)]
        return sum(one >= other for one, other in pairs)


def shuffled() -> list[dict[str, Any]]:
    """The messages of several keys, mixed; those of one key in their order."""
    keys = [f"k{key}" for key in range(KEYS) for _ in range(EACH)]
    random.Random(17).shuffle(keys)
    seen: Counter[str] = Counter()
    return [{"key": key, "n": (seen.update([key]), seen[key])[1]} for key in keys]


def publish(broker: Broker, place: str, bodies: Sequence[dict[str, Any]]) -> None:
    for body in bodies:
        sent = OutgoingMessage(place, f"{body['key']}-{body['n']}", msgspec.json.encode(body), order=body["key"])
        (outcome,) = broker.publish([sent], 30.0)
        assert isinstance(outcome, Confirmed), outcome


class Reading:
    """Several readers of one queue, each on a thread."""

    def __init__(self, app: App, opened: Callable[[], OpenedBroker], count: int = READERS) -> None:
        (consumer,) = app.consumers.values()
        app.runtime.root.roll = lambda: 0.0  # type: ignore[method-assign]
        self.readers = [QueueReader(app.runtime, consumer, opened) for _ in range(count)]
        self.threads = [threading.Thread(target=reader.run, daemon=True) for reader in self.readers]
        for thread in self.threads:
            thread.start()

    def until(self, is_over: Callable[[], bool], seconds: float = 60.0) -> None:
        pause = threading.Event()
        for _ in range(round(seconds / 0.02)):
            if is_over():
                return
            pause.wait(0.02)
        raise AssertionError("it took too long")

    def stop(self) -> None:
        for reader in self.readers:
            reader.stop()
        for thread in self.threads:
            thread.join(10.0)
            assert not thread.is_alive()


def consumed(app: App, place: str, diary: Diary, **options: Any) -> None:
    app.consume(f"main/{place}", inline=True, repeat="safe", prefetch=20, **options)(lambda body: diary.note(body))


def odd_ones_fail(body: dict[str, Any]) -> bool:
    return body["n"] % 4 == 1


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "control"])
def test_several_keys_under_several_readers_have_no_inversions(app: App, ordered: bool) -> None:
    queues, diary = MemoryQueues(), Diary(odd_ones_fail)
    consumed(app, "orders", diary, **({"order": ORDER} if ordered else {}))
    publish(MemoryBroker(queues, clock=app.clock), "orders", shuffled())
    reading = Reading(app, lambda: OpenedBroker(MemoryBroker(queues, clock=app.clock)))
    reading.until(lambda: diary.count == KEYS * EACH)
    reading.stop()
    assert diary.most > 1 and not queues.queues["orders"]
    if ordered:
        assert (diary.inversions, diary.most_of_a_key) == (0, 1)
    else:  # the rule removed: a message that failed comes back behind those after it
        assert diary.inversions > 0


async def make_nats_consumer(url: str, stream: str) -> None:
    import nats
    from nats.js.api import ConsumerConfig, StreamConfig

    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(StreamConfig(stream, subjects=[f"{stream}.*"]))
    await jetstream.add_consumer(stream, ConsumerConfig("work", durable_name="work", ack_wait=2))
    await client.close()


@pytest.mark.server
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "control"])
def test_on_nats_a_reader_that_is_cut_off_leaves_no_inversions(
    app: App, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """One reader is abandoned with messages in hand, which NATS delivers again after two seconds."""
    url, stream = request.getfixturevalue("nats_server").url, f"ordered-{ordered}"
    monkeypatch.setattr(ordered_deliveries, "READER_LEASE", 3.0)
    asyncio.run(make_nats_consumer(url, stream))
    diary = Diary(odd_ones_fail)
    consumed(app, f"{stream}/work", diary, **({"order": ORDER} if ordered else {}))
    broker = open_broker(url)
    publish(broker, f"{stream}.x", shuffled())
    reading = Reading(app, lambda: OpenedBroker(open_broker(url)))
    reading.until(lambda: diary.count >= EACH)
    for reader in reading.readers:
        if reader._held:
            reader.abandon()
            break
    reading.until(lambda: diary.count == KEYS * EACH)
    reading.stop()
    broker.close()
    assert diary.most > 1
    if ordered:
        assert (diary.inversions, diary.most_of_a_key) == (0, 1)
    else:
        assert diary.inversions > 0


def test_one_that_fails_holds_back_its_own_key_alone(app: App, office: PostOffice) -> None:
    diary = Diary(lambda body: body["key"] == "a" and body["n"] == 1)
    consumed(app, "orders", diary, order=ORDER)
    for key, n in [("a", 1), ("a", 2), ("b", 1), ("b", 2)]:
        office.post({"key": key, "n": n}, f"{key}{n}")
    reader = office.reader()
    while diary.count < 2 or not reader._lines.is_idle:  # type: ignore[union-attr]
        reader.round(0.0)
    assert diary.ends == {"b": [1, 2]} and len(reader._held) == 2
    office.drain(reader)
    assert diary.ends == {"b": [1, 2], "a": [1, 2]} and reader.outcomes == {"new": 4, "failed": 1}


def test_a_message_that_becomes_a_dead_letter_is_passed(app: App, office: PostOffice) -> None:
    done: list[int] = []

    @app.consume("main/orders", inline=True, repeat="safe", attempts=1, order=ORDER)
    def work(body: dict[str, Any]) -> None:
        if body["n"] == 1:
            raise NotDone("never")
        done.append(body["n"])

    office.post({"key": "a", "n": 1}, "1")
    office.post({"n": 2}, "no order key")
    office.post({"key": "a", "n": 3}, "3")
    assert office.drain() == {"poison": 2, "new": 1} and done == [3]
    assert any("order key cannot be made" in letter.reason for letter in office.letters())


def test_another_reader_takes_over_when_the_first_has_stopped(app: App, office: PostOffice) -> None:
    diary = Diary(lambda body: False)
    consumed(app, "orders", diary, order=ORDER)
    first, second = office.reader(), office.reader()
    office.post({"key": "a", "n": 1}, "1")
    office.drain(first)
    office.post({"key": "a", "n": 2}, "2")
    assert second.round(0.0) == 0 and len(office.left) == 1
    first.stop()
    first.run()
    office.drain(second)
    assert diary.ends == {"a": [1, 2]} and not office.left


# -- runs ----------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["ordered", "control"])
def flow(request: pytest.FixtureRequest, app: App) -> Iterator[tuple[bool, list[Any]]]:
    done: list[Any] = []

    @app.flow(key="{body[key]}:{body[n]}")
    def work(body: dict[str, Any]) -> None:
        done.append((body["key"], body["n"]))
        if body["n"] == 1 and body["key"] == "a":
            app.sleep("1h")
            done.append(("a", "slept"))

    app.consume("main/orders", start=work, **({"order": ORDER} if request.param else {}))
    yield request.param, done


def test_a_run_begins_after_the_one_before_it_of_its_key(
    app: App, office: PostOffice, flow: tuple[bool, list[Any]]
) -> None:
    ordered, done = flow
    for key, n in [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)]:
        office.post({"key": key, "n": n}, f"{key}{n}")
    assert office.drain() == {"new": 5}
    runs(app)
    assert (("a", 2) in done) is not ordered  # the first of its key sleeps
    assert {("b", 1)} <= set(done)


def test_a_duplicate_of_an_earlier_message_does_not_become_the_last(app: App, office: PostOffice) -> None:
    @app.flow(key="{body[n]}")
    def work(body: dict[str, Any]) -> None: ...

    app.consume("main/orders", start=work, order=ORDER)
    reader = office.reader()
    for n in (1, 2, 1, 3):
        office.post({"key": "a", "n": n}, f"m{n}")
        office.drain(reader)
    assert reader.outcomes == {"new": 3, "duplicate": 1}
    follows = {claim_of(record).key: _follows(record) for record in block(scan_all(app.store, "run"))}
    ids = {claim_of(record).key: claim_of(record).run for record in block(scan_all(app.store, "run"))}
    assert follows == {"1": "", "2": ids["1"], "3": ids["2"]}


def test_a_crash_between_a_run_and_the_tail_of_its_key_breaks_no_order(
    app: App, office: PostOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.flow(key="{body[n]}")
    def work(body: dict[str, Any]) -> None: ...

    app.consume("main/orders", start=work, order=ORDER)
    written, lost = ordered_deliveries._tail_write, []

    def lose_the_second(*given: Any) -> Any:
        lost.append(given)
        if len(lost) == 2:
            raise StoreUnavailable("it was cut off")
        return written(*given)

    monkeypatch.setattr(ordered_deliveries, "_tail_write", lose_the_second)
    for n in (1, 2, 3):
        office.post({"key": "a", "n": n}, f"m{n}")
    assert office.drain() == {"new": 2, "unavailable": 1, "duplicate": 1}
    claims = {claim_of(record).key: record for record in block(scan_all(app.store, "run"))}
    ids = {key: claim_of(record).run for key, record in claims.items()}
    assert {key: _follows(record) for key, record in claims.items()} == {"1": "", "2": ids["1"], "3": ids["2"]}


def _follows(record: Any) -> str:
    from twiceproof.flows.engine.run_states import work_of

    return work_of(claim_of(record)).follows


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "control"])
def test_several_keys_under_several_workers_have_no_inversions(app: App, office: PostOffice, ordered: bool) -> None:
    diary = Diary(lambda body: False)

    @app.flow(key="{body[key]}:{body[n]}")
    def work(body: dict[str, Any]) -> None:
        if body["n"] % 3 == 1:
            app.sleep(0.3)  # a worker does others meanwhile
        note(body)

    @app.step
    def note(body: dict[str, Any]) -> None:
        diary.note(body)

    app.consume("main/orders", start=work, **({"order": ORDER} if ordered else {}))
    bodies = shuffled()
    for body in bodies:
        office.post(body, f"{body['key']}-{body['n']}")
    workers = [app.worker(concurrency=4, flows=["work"]) for _ in range(2)]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    reading = Reading(app, lambda: OpenedBroker(MemoryBroker(office.queues, clock=app.clock)))
    reading.until(lambda: diary.count == len(bodies))
    reading.stop()
    for worker, thread in zip(workers, threads, strict=True):
        worker.drain()
        thread.join(10.0)
    if ordered:
        assert (diary.inversions, diary.most_of_a_key) == (0, 1)
    else:
        assert diary.inversions > 0


# -- lines ---------------------------------------------------------------------------------------


def delivery(sequence: int | None, partition: str = "") -> QueueDelivery:
    return QueueDelivery("orders", b"", {}, None, sequence=sequence, partition=partition)


def test_a_late_one_goes_before_those_with_later_numbers_behind_the_one_under_way() -> None:
    lines = OrderedDeliveries()
    five, six, four, other = delivery(5), delivery(6), delivery(4), delivery(1, "another")
    lines.add_all([("a", five)])
    assert lines.ready(0.0) == [five] and lines.ready(0.0) == []
    lines.add_all([("a", six), ("a", other), ("a", four)])
    seen = []
    current = five
    while True:
        assert list(lines.settle([(current, Ack())], 0.0)) == [(current, Ack())]
        if not (ready := lines.ready(0.0)):
            break
        (current,) = ready
        seen.append(current)
    assert seen == [four, six, other]


def test_one_to_be_tried_again_rests_in_hand() -> None:
    lines = OrderedDeliveries()
    first, second = delivery(1), delivery(2)
    lines.add_all([("a", first), ("a", second)])
    lines.ready(0.0)
    assert list(lines.settle([(first, Requeue(5.0))], 10.0)) == []
    assert lines.ready(14.9) == [] and lines.ready(15.0) == [first] and lines.times(first) == 2


@pytest.mark.parametrize("order", [by(object="{a}", version="{b}"), "{delivery[times]}"], ids=["by", "changing"])
def test_what_is_no_order_key_is_refused(app: App, office: PostOffice, order: Any) -> None:
    with pytest.raises(Misuse):
        app.consume("main/orders", inline=True, order=order)(lambda body: None)
