"""Brokers are opened by URL; what is wrong with a URL is said without its password."""

from __future__ import annotations

import subprocess
import sys
import traceback

import pytest

from twiceproof.brokers.base import OutgoingMessage
from twiceproof.brokers.kafka import KafkaBroker
from twiceproof.brokers.memory import MemoryBroker
from twiceproof.brokers.nats import NatsBroker
from twiceproof.brokers.open import BROKERS, open_broker
from twiceproof.brokers.rabbitmq import RabbitBroker
from twiceproof.brokers.redis_streams import RedisStreamBroker
from twiceproof.brokers.service_bus import ServiceBusBroker
from twiceproof.brokers.sqs import SqsBroker
from twiceproof.errors import BrokerUnavailable, Misuse

SECRET = "hunter2"
KINDS = {
    "amqp": RabbitBroker,
    "amqps": RabbitBroker,
    "kafka": KafkaBroker,
    "kafkas": KafkaBroker,
    "memory": MemoryBroker,
    "nats": NatsBroker,
    "tls": NatsBroker,
    "redis+stream": RedisStreamBroker,
    "rediss+stream": RedisStreamBroker,
    "servicebus": ServiceBusBroker,
    "servicebus+amqp": ServiceBusBroker,
    "sqs": SqsBroker,
    "sqs+http": SqsBroker,
}


@pytest.mark.parametrize("scheme", BROKERS)
def test_a_scheme_opens_its_broker(scheme):
    broker = open_broker(f"{scheme}://user:{SECRET}@127.0.0.1")
    assert type(broker) is KINDS[scheme]
    broker.close()


@pytest.mark.parametrize(
    "url",
    [
        f"rabbit://user:{SECRET}@host",
        f"{SECRET}",
        f"amqp://user:{SECRET}@host:port/",
        f"amqp://user:{SECRET}@[host/",
        f"nats://user:{SECRET}@",
        f"amqp://user:{SECRET}@host?prefetch=many",
        f"amqp://user:{SECRET}@host?prefetch=0",
        f"amqp://user:{SECRET}@host?lease=5",
        f"nats://user:{SECRET}@host?prefetch=5",
        f"redis+stream://user:{SECRET}@host?lease=nan",
        f"sqs://user:{SECRET}@host?lease=0",
        f"sqs://user:{SECRET}@",
        f"kafka://user:{SECRET}@host?prefetch=0",
        f"kafka://user:{SECRET}@host?lease=5",
        f"kafkas://user:{SECRET}@host/MD5",
        "servicebus://host",
        f"servicebus://:{SECRET}@host",
        f"servicebus://user:{SECRET}@host?sessions=0",
        f"servicebus://user:{SECRET}@host?lease=5",
    ],
)
def test_a_url_that_is_wrong_is_refused_without_its_password(url):
    with pytest.raises(Misuse) as caught:
        open_broker(url)
    shown = "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert SECRET not in shown


@pytest.mark.parametrize(
    "url",
    [
        "amqp://host?prefetch=5",
        "redis+stream://host?lease=5.5",
        "sqs://eu-west-1?lease=60",
        "kafka://h1,h2:9092?prefetch=9",
        "servicebus://user:key@host?dedupe=600&sessions=16",
    ],
)
def test_an_option_of_a_url_is_taken(url):
    open_broker(url).close()


@pytest.mark.parametrize("scheme", ["amqp", "nats", "redis+stream", "sqs+http", "kafka", "servicebus+amqp"])
def test_a_broker_that_cannot_be_reached_refuses_and_says_where(scheme):
    broker = open_broker(f"{scheme}://user:{SECRET}@127.0.0.1:1")
    (outcome,) = broker.publish([OutgoingMessage("orders", "a", b"")], 5.0)
    with pytest.raises(BrokerUnavailable) as caught:
        broker.receive("orders/work", 1, 0.1)
    (finding,) = broker.examine(["orders"])
    broker.close()
    assert outcome.away and not caught.value.missing and finding.level == "error"
    for text in (outcome.why, str(caught.value), finding.text):
        assert "127.0.0.1:1 cannot be reached" in text
        assert SECRET not in text


def test_memory_brokers_of_one_name_share_their_messages():
    first, second, other = (open_broker(f"memory://{name}") for name in ("tests", "tests", "others"))
    first.publish([OutgoingMessage("orders", "a", b"")], 1.0)
    assert [delivery.key for delivery in second.receive("orders", 5, 0.0)] == ["a"]
    assert other.receive("orders", 5, 0.0) == []
    second.close()


@pytest.mark.parametrize(
    ("scheme", "package", "extra"),
    [
        ("amqp", "aio_pika", "rabbitmq"),
        ("nats", "nats", "nats"),
        ("redis+stream", "redis", "redis"),
        ("sqs", "boto3", "sqs"),
        ("kafka", "confluent_kafka", "kafka"),
        ("servicebus", "azure.servicebus", "servicebus"),
    ],
)
def test_a_client_that_is_not_installed_is_named_with_its_extra(scheme, package, extra, monkeypatch):
    module = {"amqp": "rabbitmq", "redis+stream": "redis_streams", "servicebus": "service_bus"}.get(scheme, scheme)
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith(f"twiceproof.brokers.{module}")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(Misuse, match=rf"pip install 'twiceproof\[{extra}\]'"):
        open_broker(f"{scheme}://host")


def test_the_app_imports_no_broker():
    code = "import sys, twiceproof; twiceproof.App; print([m for m in sys.modules if 'brokers.' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
