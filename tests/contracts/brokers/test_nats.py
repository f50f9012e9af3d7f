"""NATS JetStream keeps the contract."""

from __future__ import annotations

import pytest
from nats.js import JetStreamContext

from tests.contracts.brokers.places import NatsPlace, ThroughProxy, opening
from tests.servers.nats import NatsServer
from twiceproof.brokers.base import Confirmed, OutgoingMessage, Refused
from twiceproof.brokers.nats import NatsBroker
from twiceproof.errors import BrokerUnavailable
from twiceproof.prove.broker_contract import LeasedBrokerContract

pytestmark = [pytest.mark.server, pytest.mark.slow]


class TestNats(ThroughProxy, LeasedBrokerContract):
    nowhere = NatsPlace.nowhere

    @pytest.fixture(autouse=True)
    def server(self, nats_server, fault_proxy):
        self.proxy = fault_proxy(nats_server.host, nats_server.port)
        made = NatsPlace(nats_server, self.lease)
        self.place, self.source = made.place, made.source

    def make_broker(self):
        return NatsBroker(f"nats://{self.proxy.host}:{self.proxy.port}")

    open_again = make_broker


@pytest.fixture
def open_broker():
    with opening(NatsBroker) as make:
        yield make


@pytest.mark.parametrize("missing", [False, True])
def test_a_stream_is_looked_for_once_for_all_messages_of_a_batch(nats_server, open_broker, monkeypatch, missing):
    place = NatsPlace(nats_server)
    broker = open_broker(place.url)
    look, asked = JetStreamContext.find_stream_name_by_subject, []
    monkeypatch.setattr(
        JetStreamContext, "find_stream_name_by_subject", lambda self, name: asked.append(name) or look(self, name)
    )
    at = "no-such-subject" if missing else place.place
    outcomes = broker.publish([OutgoingMessage(at, f"{number}", b"{}") for number in range(300)], 20.0)
    assert {type(outcome) for outcome in outcomes} == {Refused if missing else Confirmed}
    assert asked == [at]


def test_a_login_that_fails_is_said_without_the_password(open_broker):
    with NatsServer(login=("shop", "right")) as server:
        broker = open_broker(f"nats://shop:hunter2@{server.host}:{server.port}")
        (refused,) = broker.publish([OutgoingMessage("orders", "a", b"")], 10.0)
        assert isinstance(refused, Refused)
        with pytest.raises(BrokerUnavailable) as caught:
            broker.receive("orders/work", 1, 0.1)
        for text in (refused.why, str(caught.value), broker.examine()[0].text):
            assert "refuses the user 'shop'" in text
            assert "hunter2" not in text
        place = NatsPlace(server)
        right = open_broker(place.url)
        right.publish([place.message("a")], 10.0)
        assert place.keys(right) == ["a"]


def test_the_window_of_a_stream_is_the_brokers(nats_server, open_broker):
    place = NatsPlace(nats_server, duplicate_window=7.0)
    broker = open_broker(place.url)
    broker.publish([place.message("a")], 10.0)
    assert broker.dedupe == 7.0
    assert any("within 7 seconds" in finding.text for finding in broker.examine([place.place]))


def test_a_key_that_the_stream_has_is_told_from_a_new_one(nats_server, open_broker):
    place = NatsPlace(nats_server)
    broker = open_broker(place.url)
    for number in range(40):
        first, again, fresh = (place.message(f"{number}-{name}") for name in ("a", "a", "b"))
        assert [one.duplicate for one in broker.publish([first], 10.0)] == [False]
        assert [one.duplicate for one in broker.publish([again, fresh], 10.0)] == [True, False]
    assert len(place.keys(broker)) == 80


def test_a_body_above_the_servers_limit_is_refused_for_good(nats_server, open_broker):
    """With its headers it is over the limit, which the body alone is not."""
    place = NatsPlace(nats_server)
    broker = open_broker(place.url)
    outcomes = broker.publish([place.message("a", body=b"x" * 1024 * 1024), place.message("b")], 10.0)
    assert isinstance(outcomes[0], Refused)
    assert outcomes[0].final
    assert place.keys(broker) == ["b"]


def test_a_stream_that_is_full_refuses(nats_server, open_broker):
    place = NatsPlace(nats_server, max_msgs=1, discard="new")
    broker = open_broker(place.url)
    outcomes = broker.publish([place.message("a", order="o"), place.message("b", order="o")], 10.0)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Confirmed", "Refused"]
    assert "maximum messages" in outcomes[1].why


def test_what_a_stream_and_a_consumer_lose_is_found(nats_server, open_broker):
    place = NatsPlace(nats_server, storage="memory")
    findings = {finding.subject: finding for finding in open_broker(place.url).examine([place.source])}
    assert "sync_interval: always" in findings["sync_interval"].text
    assert findings[place.name].level == "error"
