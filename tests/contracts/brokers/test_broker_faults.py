"""Brokers killed under load, and connections cut at any byte: what was confirmed is there, what was refused is not."""

from __future__ import annotations

import random
import threading
from urllib.parse import urlsplit

import pytest

from tests.contracts.brokers.places import NatsPlace, RabbitPlace, RedisPlace, ServiceBusPlace, SqsPlace
from tests.servers.ministack import SqsServer
from tests.servers.nats import NatsServer
from tests.servers.process import Unavailable
from tests.servers.rabbitmq import RabbitServer
from tests.servers.toxics import Reset
from tests.servers.valkey import ValkeyServer
from twiceproof.brokers.base import Confirmed, Refused, Unconfirmed
from twiceproof.prove.simulators import ServiceBusSimulator

pytestmark = [pytest.mark.server, pytest.mark.slow]


class ServiceBusServer(ServiceBusSimulator):
    """Our simulator. It hangs up on everybody, and keeps its messages, as the service does."""

    kill = ServiceBusSimulator.close


# Server, places, kills, and for how many seconds it is under load before each. RabbitMQ 3.10 writes the state of an
# election to the disk within five seconds: a quorum queue whose only node is killed earlier finds no leader any more.
# The emulator of SQS has its messages in memory, and is stopped rather than killed.
KINDS = {
    "rabbitmq": (RabbitServer, RabbitPlace, 2, 6.5),
    "nats": (NatsServer, NatsPlace, 6, 0.2),
    "redis": (ValkeyServer, RedisPlace, 6, 0.2),
    "sqs": (SqsServer, SqsPlace, 3, 0.2),
    "servicebus": (ServiceBusServer, ServiceBusPlace, 3, 0.2),
}
BATCH = 40
CUTS = 40
SLOW_CUTS = 6  # of a client that notices late that its connection is gone


@pytest.fixture(scope="module", params=KINDS)
def made(request):
    """A server of our own, and what makes places on it."""
    server_kind, place_kind, *kills = KINDS[request.param]
    server = server_kind()
    try:
        server.start()
    except Unavailable as error:
        pytest.skip(str(error))
    yield server, place_kind, kills
    server.close()


def sorted_out(messages, outcomes):
    """The keys of those confirmed, refused and in doubt."""
    by_kind = {Confirmed: set(), Refused: set(), Unconfirmed: set()}
    for message, outcome in zip(messages, outcomes, strict=True):
        by_kind[type(outcome)].add(message.key)
    return by_kind.values()


def test_what_was_confirmed_outlives_a_kill(made):
    server, place_kind, (kills, load_seconds) = made
    place = place_kind(server)
    broker = place.open()
    confirmed, reported = set(), threading.Event()
    stopped = threading.Event()

    def load():
        number = 0
        while not stopped.wait(0.01):
            messages = [place.message(f"{number}-{at}") for at in range(BATCH)]
            taken, _, _ = sorted_out(messages, broker.publish(messages, 5.0))
            confirmed.update(taken)
            number += 1
            if taken:
                reported.set()

    loader = threading.Thread(target=load)
    loader.start()
    try:
        for _ in range(kills):
            reported.clear()
            assert reported.wait(30)
            stopped.wait(load_seconds)
            (server.stop if place_kind is SqsPlace else server.kill)()
            server.start()
        reported.clear()
        assert reported.wait(30)  # none is stuck: it publishes again
    finally:
        stopped.set()
        loader.join(30)
    assert confirmed - set(place.keys(broker)) == set()
    broker.close()


def test_each_outcome_is_true_when_the_connection_is_cut(made, fault_proxy):
    """At any byte of the requests or the answers; one message in eight has no queue."""
    server, place_kind, _ = made
    dice = random.Random(20)
    address = urlsplit(server.url)
    place = place_kind(server)
    proxy = fault_proxy(address.hostname, address.port)
    broker, reader = place.open(proxy.url(place.url)), place.open()
    seen_kinds = set()
    for cut in range(SLOW_CUTS if place_kind is ServiceBusPlace else CUTS):
        broker.publish([place.message(f"warm-{cut}")], 5.0)
        messages = [
            place.message(f"{cut}-{at}", **({"place": place.nowhere} if at % 8 == 3 else {})) for at in range(BATCH)
        ]
        toxic = Reset(dice.choice(["request", "reply"]), dice.randrange(8_000))
        proxy.arm(toxic)
        outcomes = broker.publish(messages, 5.0)
        proxy.disarm()
        confirmed, refused, _ = sorted_out(messages, outcomes)
        there = {key for key in place.keys_now(reader) if key.startswith(f"{cut}-")}
        assert confirmed - there == set()
        assert refused & there == set()
        seen_kinds |= {type(outcome) for outcome in outcomes}
    assert seen_kinds == {Confirmed, Refused, Unconfirmed}  # the cuts hit
    broker.close()
    reader.close()
