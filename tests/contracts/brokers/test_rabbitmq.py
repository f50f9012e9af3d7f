"""RabbitMQ keeps the contract, with quorum queues and with classic ones. Checked against Debian's 3.10."""

from __future__ import annotations

import asyncio
import contextlib

import aio_pika
import pytest

from tests.contracts.brokers.places import RabbitPlace, ThroughProxy, opening
from twiceproof.brokers.base import Confirmed, OutgoingMessage, Refused, Unconfirmed
from twiceproof.brokers.rabbitmq import RabbitBroker
from twiceproof.errors import BrokerUnavailable
from twiceproof.prove.broker_contract import BrokerContract

pytestmark = [pytest.mark.server, pytest.mark.slow]


class TestQuorumQueue(ThroughProxy, BrokerContract):
    kind = "quorum"
    soon = 20.0

    @pytest.fixture(autouse=True)
    def server(self, rabbit_server, fault_proxy):
        self.proxy = fault_proxy(rabbit_server.host, rabbit_server.port)
        made = RabbitPlace(rabbit_server, **{"x-queue-type": self.kind})
        self.place, self.topic, self.source = made.place, made.topic, made.source

    def make_broker(self):
        return RabbitBroker(f"amqp://guest:guest@{self.proxy.host}:{self.proxy.port}/")

    open_again = make_broker


class TestClassicQueue(TestQuorumQueue):
    kind = "classic"
    counts = False


@pytest.fixture
def open_broker():
    with opening(RabbitBroker) as make:
        yield make


ROUNDS = 40


def test_messages_that_a_queue_rejects_are_refused_among_others(rabbit_server, open_broker):
    full = RabbitPlace(rabbit_server, **{"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"})
    place = RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    broker.publish([full.message(key) for key in ("a", "b")], 10.0)  # it takes one more than its limit
    for number in range(ROUNDS):
        messages = [full.message(f"{number}"), place.message(f"{number}"), full.message(f"{number}-more")]
        outcomes = broker.publish(messages, 10.0)
        assert [type(one) for one in outcomes] == [Refused, Confirmed, Refused]
        assert all("basic.nack" in one.why for one in (outcomes[0], outcomes[2]))
    assert sorted(place.keys(broker)) == sorted(map(str, range(ROUNDS)))
    assert set(full.keys(broker)) <= {"a", "b"}


def test_a_channel_that_the_server_closes_leaves_doubt_then_a_refusal(rabbit_server, open_broker):
    """The exchange is deleted after it was seen: the server closes the channel, with all that is under way on it."""
    place, other = RabbitPlace(rabbit_server), RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    confirmed = set()
    for number in range(ROUNDS):
        assert isinstance(broker.publish([place.message(f"seen-{number}")], 10.0)[0], Confirmed)
        place.delete_exchange()
        lost, beside = broker.publish([place.message(f"lost-{number}"), other.message(f"beside-{number}")], 10.0)
        assert isinstance(lost, Unconfirmed)
        assert not isinstance(beside, Refused)  # it was handed over, on the same channel
        confirmed |= {f"beside-{number}"} if isinstance(beside, Confirmed) else set()
        (refused,) = broker.publish([place.message(f"lost-{number}")], 10.0)
        assert isinstance(refused, Refused)
        assert place.place in refused.why
        place.create()
    assert confirmed <= set(other.keys(broker))
    assert set(place.keys(broker)) == {f"seen-{number}" for number in range(ROUNDS)}


def test_an_unroutable_message_names_the_routing_key(rabbit_server, open_broker):
    place = RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    (refused,) = broker.publish([place.message("a", topic="unbound")], 10.0)
    assert isinstance(refused, Refused)
    assert "'unbound'" in refused.why and place.place in refused.why


def test_a_return_is_not_taken_for_that_of_another_message_with_its_key(rabbit_server, open_broker):
    """The client finds the returned message by its id, which both routes of a message have."""
    place = RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    for number in range(20):
        messages = [place.message(f"{number}", topic="unbound"), place.message(f"{number}")]
        assert [type(one) for one in broker.publish(messages, 10.0)] == [Refused, Confirmed]
        assert [type(one) for one in broker.publish(messages[::-1], 10.0)] == [Confirmed, Refused]


@pytest.mark.parametrize("missing", [False, True])
def test_an_exchange_is_looked_for_once_for_all_messages_of_a_batch(rabbit_server, open_broker, monkeypatch, missing):
    """A look takes a channel, of which a server may permit few: one too many ends the connection."""
    place = RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    if missing:
        place.delete_exchange()
    channel, opened = aio_pika.Connection.channel, []
    monkeypatch.setattr(aio_pika.Connection, "channel", lambda *a, **more: opened.append(1) or channel(*a, **more))
    outcomes = broker.publish([place.message(f"{number}") for number in range(300)], 30.0)
    assert {type(outcome) for outcome in outcomes} == {Refused if missing else Confirmed}
    assert len(opened) == 2  # the one to publish on is the other


def test_a_queue_is_published_to_without_an_exchange(rabbit_server, open_broker):
    place = RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    messages = [OutgoingMessage(f"/queues/{name}", "a", b"") for name in (place.source, "no-such-queue")]
    assert [type(one) for one in broker.publish(messages, 10.0)] == [Confirmed, Refused]
    assert place.keys(broker) == ["a"]


def test_no_more_than_prefetch_is_outstanding(rabbit_server, open_broker):
    place = RabbitPlace(rabbit_server)
    sender = open_broker(place.url)
    sender.publish([place.message(str(number)) for number in range(20)], 10.0)
    first, second = RabbitBroker(place.url, prefetch=5), RabbitBroker(place.url, prefetch=50)
    assert sum(len(first.receive(place.source, 100, 0.5)) for _ in range(4)) == 5
    assert len(place.keys(second)) == 15
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("login", "path", "said"),
    [
        ("guest:hunter2", "", "refuses the user 'guest'"),
        ("guest:guest", "no-such-vhost", "virtual host 'no-such-vhost'"),
    ],
)
def test_a_login_that_fails_is_said_without_the_password(rabbit_server, open_broker, login, path, said):
    broker = open_broker(f"amqp://{login}@{rabbit_server.host}:{rabbit_server.port}/{path}")
    (refused,) = broker.publish([OutgoingMessage("orders", "a", b"")], 10.0)
    assert isinstance(refused, Refused)
    assert refused.away
    with pytest.raises(BrokerUnavailable) as caught:
        broker.receive("orders", 1, 0.1)
    for text in (refused.why, str(caught.value), broker.examine()[0].text):
        assert said in text
        assert "hunter2" not in text


@pytest.mark.parametrize(
    ("arguments", "level", "said"),
    [
        ({"x-queue-type": "quorum"}, "ok", "counts deliveries"),
        ({"x-queue-type": "classic"}, "warning", "does not count deliveries"),
        ({"durable": False, "x-queue-type": "classic"}, "error", "does not outlive a restart"),
    ],
)
def test_the_kind_of_a_queue_is_found(rabbit_server, open_broker, arguments, level, said):
    place = RabbitPlace(rabbit_server, **arguments)
    finding = open_broker(place.url).examine([place.source])[-1]
    assert (finding.level, said in finding.text) == (level, True)


def test_a_route_is_examined_as_an_exchange_and_a_consumer_as_a_queue(rabbit_server, open_broker):
    place = RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    exchange = place.place
    assert [one.level for one in broker.examine_routes([exchange, f"/queues/{place.source}"])] == ["ok"] * 3
    assert broker.publish([place.message("a", place=f"/exchanges/{exchange}")], 10.0) == [Confirmed()]
    place.delete_exchange()
    assert "no exchange" in broker.examine_routes([exchange])[-1].text
    assert "no queue" in broker.examine(["no-such"])[-1].text


def test_an_outage_leaves_no_line_of_the_client_in_the_log(caplog):
    """It is one line of the relay's or the reader's."""
    broker = RabbitBroker("amqp://guest:guest@127.0.0.1:1/")
    (refused,) = broker.publish([OutgoingMessage("/queues/a", "a", b"")], 10.0)
    broker.close()
    assert refused.away and caplog.records == []


def test_what_the_client_logs_about_other_connections_is_left_alone(caplog):
    async def connect():
        with contextlib.suppress(OSError):
            await aio_pika.connect("amqp://guest:guest@127.0.0.1:1/")

    asyncio.run(connect())
    assert [record.name for record in caplog.records] == ["aiormq.connection"]


def test_a_queue_that_is_deleted_while_it_is_consumed_is_missed(rabbit_server, open_broker):
    place = RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    assert broker.receive(place.source, 1, 0.1) == []
    place.delete_queue()
    with pytest.raises(BrokerUnavailable) as caught:
        for _ in range(20):
            broker.receive(place.source, 1, 0.1)
    assert caught.value.missing
