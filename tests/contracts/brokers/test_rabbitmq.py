"""RabbitMQ keeps the contract, with quorum queues and with classic ones. Checked against Debian's 3.10."""

from __future__ import annotations

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


def test_a_message_that_the_queue_rejects_is_refused(rabbit_server, open_broker):
    place = RabbitPlace(rabbit_server, **{"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"})
    broker = open_broker(place.url)
    outcomes = [broker.publish([place.message(key)], 10.0)[0] for key in ("a", "b", "c")]
    assert isinstance(outcomes[0], Confirmed)
    assert isinstance(outcomes[2], Refused)
    assert "basic.nack" in outcomes[2].why
    assert "c" not in place.keys(broker)


def test_a_channel_that_the_server_closes_leaves_doubt_then_a_refusal(rabbit_server, open_broker):
    """The exchange is deleted after it was seen: the server closes the channel, with all that is under way on it."""
    place = RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    assert isinstance(broker.publish([place.message("a")], 10.0)[0], Confirmed)
    place.delete_exchange()
    assert [type(one) for one in broker.publish([place.message("b")], 10.0)] == [Unconfirmed]
    (refused,) = broker.publish([place.message("b")], 10.0)
    assert isinstance(refused, Refused)
    assert place.place in refused.why


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


def test_a_queue_that_is_deleted_while_it_is_consumed_is_missed(rabbit_server, open_broker):
    place = RabbitPlace(rabbit_server)
    broker = open_broker(place.url)
    assert broker.receive(place.source, 1, 0.1) == []
    place.delete_queue()
    with pytest.raises(BrokerUnavailable) as caught:
        for _ in range(20):
            broker.receive(place.source, 1, 0.1)
    assert caught.value.missing
