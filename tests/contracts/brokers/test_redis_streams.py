"""Redis Streams keep the contract. Checked against the Redis or Valkey that tests find."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.contracts.brokers.places import RedisPlace, ThroughProxy
from tests.servers.valkey import ValkeyServer
from twiceproof.brokers.base import Ack, Confirmed, OutgoingMessage, Refused, Requeue
from twiceproof.brokers.redis_streams import RedisStreamBroker
from twiceproof.errors import BrokerUnavailable
from twiceproof.prove.broker_contract import LeasedBrokerContract

pytestmark = [pytest.mark.server, pytest.mark.slow]


class TestRedisStreams(ThroughProxy, LeasedBrokerContract):
    @pytest.fixture(autouse=True)
    def server(self, valkey_server, fault_proxy):
        address = urlsplit(valkey_server.url)
        self.proxy = fault_proxy(address.hostname, address.port or 6379)
        made = RedisPlace(valkey_server)
        self.place, self.source = made.place, made.source
        self.url = self.proxy.url(made.url)

    def make_broker(self):
        return RedisStreamBroker(self.url, lease=self.lease)

    open_again = make_broker


def test_a_login_that_fails_is_said_without_the_password():
    with ValkeyServer() as server:
        server.call("CONFIG", "SET", "requirepass", "right")
        broker = RedisStreamBroker(f"redis+stream://:hunter2@{server.host}:{server.port}/0")
        (refused,) = broker.publish([OutgoingMessage("orders", "a", b"")], 10.0)
        assert isinstance(refused, Refused)
        with pytest.raises(BrokerUnavailable) as caught:
            broker.receive("orders/work", 1, 0.1)
        for text in (refused.why, str(caught.value), broker.examine()[0].text):
            assert "refuses the user or the password" in text
            assert "hunter2" not in text
        broker.close()


def connections(server):
    """Those on which messages were published."""
    return {client["id"] for client in server.call("CLIENT LIST") if client["cmd"] == "eval"}


def test_a_server_that_was_made_a_replica_is_away_and_connected_to_anew():
    """Its address may lead to its successor by now, and a connection that stays open does not."""
    with ValkeyServer() as server:
        server.call("XGROUP", "CREATE", "orders", "work", "0", "MKSTREAM")
        broker = RedisStreamBroker(f"redis+stream://{server.host}:{server.port}/0")
        (stored,) = broker.publish([OutgoingMessage("orders", "a", b"")], 10.0)
        first = connections(server)
        server.call("REPLICAOF", "127.0.0.1", "1")
        (refused,) = broker.publish([OutgoingMessage("orders", "b", b"")], 10.0)
        assert isinstance(stored, Confirmed) and isinstance(refused, Refused)
        assert refused.away and "READONLY" in refused.why
        server.call("REPLICAOF", "NO", "ONE")
        (stored,) = broker.publish([OutgoingMessage("orders", "b", b"")], 10.0)
        assert isinstance(stored, Confirmed)
        assert (len(first), first & connections(server)) == (1, set())
        broker.close()


def test_a_user_who_may_not_wait_for_a_stream_asks_in_intervals():
    with ValkeyServer() as server:
        server.call("XGROUP", "CREATE", "orders", "work", "0", "MKSTREAM")
        server.call("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-xread")
        broker = RedisStreamBroker(f"redis+stream://reader:secret@{server.host}:{server.port}/0")
        assert broker.receive("orders/work", 1, 2.0) == []
        assert server.call("INFO", "commandstats")["cmdstat_eval"]["calls"] < 10
        broker.close()


def test_a_consumer_that_is_closed_leaves_no_trace(valkey_server):
    place = RedisPlace(valkey_server)
    broker = place.open()
    broker.publish([place.message("a"), place.message("b")], 5.0)
    first, second = broker.receive(place.source, 2, 5.0)
    broker.settle([(first, Ack()), (second, Requeue(60.0))])
    broker.close()
    (consumer,) = valkey_server.call("XINFO CONSUMERS", place.place, "work")
    assert consumer["name"] == b"returned"


def test_another_groups_messages_are_left_alone(valkey_server):
    place = RedisPlace(valkey_server)
    valkey_server.call("XGROUP", "CREATE", place.place, "others", "0")
    broker = place.open()
    broker.publish([place.message("a")], 5.0)
    assert place.keys(broker) == ["a"]
    assert [delivery.key for delivery in broker.receive(f"{place.place}/others", 5, 1.0)] == ["a"]
    broker.close()


def test_what_a_server_loses_is_found():
    with ValkeyServer({"appendonly": "no", "maxmemory-policy": "allkeys-lru"}) as server:
        broker = RedisStreamBroker(f"redis+stream://{server.host}:{server.port}/0")
        assert {finding.subject for finding in broker.examine()} == {"durability", "appendonly", "maxmemory-policy"}
        broker.close()
