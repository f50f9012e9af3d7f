"""The recording broker: what a flow sends is published in every scenario, once for each key and in order."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from twiceproof import App
from twiceproof.brokers.base import Confirmed, OutgoingMessage, Unconfirmed
from twiceproof.brokers.memory import MemoryBroker
from twiceproof.brokers.open import BROKERS, open_broker
from twiceproof.outbox.relay import TargetRelay
from twiceproof.prove.checklist.calls import publishes
from twiceproof.prove.checklist.search import of_step
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.worlds import broker
from twiceproof.prove.worlds.broker import BrokerWorld, StandInBroker

pytestmark = pytest.mark.slow

app = App("memory://")
app.broker("main", "amqp://shop.test")
app.route("orders.*", to="main", place="shop")
PAID, SHIPPED = (f'message orders.{name} to shop: {{"id":17}}' for name in ("paid", "shipped"))


@pytest.fixture
def world() -> Iterator[BrokerWorld]:
    with BrokerWorld() as world:
        yield world


def message(key: str, **more: str) -> OutgoingMessage:
    return OutgoingMessage(**{"place": "shop", "key": key, "body": b"{}", **more})  # type: ignore[arg-type]


def test_every_broker_that_is_opened_meanwhile_is_the_stand_in(world: BrokerWorld) -> None:
    for scheme in BROKERS:
        open_broker(f"{scheme}://host").publish([message(scheme)], 1.0)
    assert world.look() == {"message to shop: {}": len(BROKERS)}
    world.reset()
    assert (world.look(), world.exchanges()) == ({}, [])
    world.close = lambda: None  # type: ignore[method-assign]
    BrokerWorld.close(world)
    assert isinstance(open_broker("memory://x"), MemoryBroker)


def test_a_key_that_comes_again_is_one_message(world: BrokerWorld) -> None:
    world.broker().publish([message("a"), message("a"), message("b", body=b"other")], 1.0)  # type: ignore[arg-type]
    assert world.look() == {"message to shop: {}": 1, "message to shop: other": 1}
    assert len(world.exchanges()) == 3


def test_an_answer_can_be_lost_when_the_message_was_stored(world: BrokerWorld) -> None:
    world.lose(2)
    outcomes = world.broker().publish([message("a"), message("b"), message("c")], 1.0)
    assert [type(outcome) for outcome in outcomes] == [Confirmed, Unconfirmed, Confirmed]
    assert world.look() == {"message to shop: {}": 3}


def test_messages_of_an_order_key_in_another_order_are_something_else(world: BrokerWorld) -> None:
    first, second = message("a", order="o", body=b"1"), message("b", order="o", body=b"2")  # type: ignore[arg-type]
    world.broker().publish([first, second, first], 1.0)
    right = world.look()
    world.reset()
    world.broker().publish([second, first], 1.0)
    assert right != world.look()
    assert right.keys() - world.look().keys() == {"in order of o: message to shop: 1, then message to shop: 2"}


@app.flow(key="order:{order[id]}")
def ship(order: dict[str, int]) -> None:
    app.send("orders.paid", order, order="order:17")
    app.send("orders.shipped", order, order="order:17")


@app.flow(key="later:{order[id]}")
def send_later(order: dict[str, int]) -> None:
    app.send("orders.paid", order, delay="5m")


def publish(key: str) -> None:
    open_broker("amqp://shop.test").publish([message(key)], 1.0)


@app.step(repeat="safe")
def publish_by_hand(order: dict[str, int]) -> None:
    open_broker("amqp://shop.test").publish([message(str(uuid.uuid4()))], 1.0)


@app.flow(key="by-hand:{order[id]}")
def tell(order: dict[str, int]) -> None:
    publish_by_hand(order)


@app.step(repeat="keyed")
def publish_under_key(order: dict[str, int]) -> None:
    publish(app.effect_key())


@app.flow(key="under-key:{order[id]}")
def tell_under_key(order: dict[str, int]) -> None:
    publish_under_key(order)


class Counting(BrokerWorld):
    """The same world; it remembers how many publications each scenario had, which a reset forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def reset(self) -> None:
        self.counts.append(len(self.exchanges()))
        super().reset()


def test_what_a_flow_sends_arrives_once_and_in_order_whatever_happens() -> None:
    """Also where it is published again: the answer was lost, or the relay was killed before it marked it as sent."""
    with Counting() as world:
        report = prove(ship, {"id": 17}, world=world, depth=1)
    assert set(report.expected) == {PAID, SHIPPED, f"in order of order:17: {PAID}, then {SHIPPED}"}
    names = {verdict.scenario for verdict in report.verdicts}
    assert {"twice", "thrice", "at-once", "answer-lost-1", "answer-lost-2", "kill-write-3-before"} <= names
    assert {verdict.word for verdict in report.verdicts} == {"same"}
    assert max(world.counts) > 2


def test_a_relay_that_makes_a_key_for_each_attempt_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(one: OutgoingMessage) -> dict[str, str]:
        return {**told(one), "key": uuid.uuid4().hex}

    told = broker._told
    monkeypatch.setattr(broker, "_told", fresh)
    with BrokerWorld() as world, pytest.raises(NotSafe) as caught:
        prove(ship, {"id": 17}, world=world, depth=1)
    assert "answer-lost-1" in str(caught.value)


def test_a_relay_that_marks_before_it_publishes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed in between: the message is marked as sent, and nobody has it."""
    held: list[tuple[StandInBroker, Any]] = []
    publish, record = StandInBroker.publish, TargetRelay._record

    def confirm(one: StandInBroker, messages: Any, patience: float) -> list[Confirmed]:
        held.append((one, messages))
        return [Confirmed() for _ in messages]

    def publish_afterwards(relay: TargetRelay, out: Any) -> bool:
        more = record(relay, out)
        while held:
            publish(*held.pop(), 1.0)
        return more

    monkeypatch.setattr(StandInBroker, "publish", confirm)
    monkeypatch.setattr(TargetRelay, "_record", publish_afterwards)
    with BrokerWorld() as world, pytest.raises(NotSafe) as caught:
        prove(send_later, {"id": 17}, world=world, depth=1)
    assert "lost" in str(caught.value)


def test_a_message_that_is_sent_for_later_is_published_too(world: BrokerWorld) -> None:
    report = prove(send_later, {"id": 17}, world=world, depth=1)
    assert (report.good, list(report.expected)) == (True, [PAID])


def test_a_step_that_publishes_by_hand_is_named_with_what_to_write(world: BrokerWorld) -> None:
    with pytest.raises(NotSafe) as caught:
        prove(tell, {"id": 17}, world=world, depth=1)
    assert 'publish_by_hand is declared "safe", and is not' in str(caught.value)
    assert "Write instead: app.send(topic, body)" in str(caught.value)


def test_a_step_that_publishes_by_hand_under_its_effect_key_is_safe(world: BrokerWorld) -> None:
    assert prove(tell_under_key, {"id": 17}, world=world, depth=1).good


def test_check_names_the_step_that_publishes_by_hand_and_not_its_twin() -> None:
    found = [one for step in (publish_by_hand, publish_under_key) for one in of_step(step.step, keeps_large=True)]
    assert [(one.rule, one.where) for one in found] == [("published-by-hand", "publish_by_hand")]
    assert "app.send(topic, body)" in found[0].instead


@pytest.mark.parametrize(
    ("path", "is_found"),
    [
        ("channel.basic_publish", True),
        ("pika.BlockingConnection.channel.basic_publish", True),
        ("twiceproof.brokers.rabbitmq.RabbitBroker.publish", True),
        ("aio_pika.exchange.Exchange.publish", True),
        ("redis.client.Redis.xadd", True),
        ("confluent_kafka.Producer.produce", True),
        ("self.producer.send", True),
        ("post.publish", False),
        ("mailer.send", False),
        ("app.send", False),
    ],
)
def test_a_client_that_publishes_is_known_by_its_name(path: str, is_found: bool) -> None:
    assert publishes(path) is is_found
