"""Azure Service Bus keeps the contract. Checked against our own simulator, not against the service."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from azure.servicebus.aio import ServiceBusSender

from tests.contracts.brokers.places import ServiceBusPlace, ThroughProxy, opening
from twiceproof.brokers.base import Ack, Confirmed, OutgoingMessage, Refused, Reject, Requeue, Unconfirmed
from twiceproof.brokers.open import open_broker as open_by_url
from twiceproof.brokers.service_bus import ServiceBusBroker
from twiceproof.brokers.service_bus_receivers import MessageHold
from twiceproof.errors import BrokerUnavailable
from twiceproof.prove.broker_contract import LeasedBrokerContract
from twiceproof.prove.broker_contract.publications import OrderKeys, RepeatedKeys
from twiceproof.prove.simulators import ServiceBusSimulator
from twiceproof.prove.simulators.amqp import Described, ULong, encoded
from twiceproof.prove.simulators.amqp_connection import AmqpRefusal
from twiceproof.prove.simulators.service_bus_queues import PROPERTIES, VALUE, message_of

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def simulator():
    with ServiceBusSimulator() as simulator:
        yield simulator


class OnSimulator(ThroughProxy):
    """The hooks of the contract."""

    nowhere = "no-such-queue"
    tells = False  # Service Bus reports a repeated key as taken
    lease = 2.0
    dedupe = 0.0
    subscribed = False

    @pytest.fixture(autouse=True)
    def server(self, simulator, fault_proxy):
        self.proxy = fault_proxy("127.0.0.1", simulator.port)
        made = ServiceBusPlace(simulator, self.lease, subscribed=self.subscribed, dedupe_seconds=self.dedupe)
        self.place, self.source = made.place, made.source
        self.url = self.proxy.url(simulator.url)

    def make_broker(self):
        return ServiceBusBroker(self.url, dedupe=self.dedupe)

    open_again = make_broker


class TestQueue(OnSimulator, LeasedBrokerContract):
    """All of the contract."""


class TestDuplicateDetection(OnSimulator, RepeatedKeys):
    dedupe = 600.0


class TestSubscription(OnSimulator, OrderKeys):
    subscribed = True


@pytest.fixture
def open_broker():
    with opening(open_by_url) as make:
        yield make


def test_it_counts_what_is_not_settled(simulator, open_broker):
    place = ServiceBusPlace(simulator)
    broker = open_broker(place.url)
    assert broker.waiting(place.source) == 0
    broker.publish([place.message(key) for key in "abc"], 10.0)
    assert broker.waiting(place.source) == 3
    (first,) = broker.receive(place.source, 1, 5.0)
    assert broker.waiting(place.source) == 3  # it may come again
    broker.settle([(first, Ack())])
    assert broker.waiting(place.source) == 2
    assert broker.waiting("no-such-queue") is None


def test_many_messages_without_a_queue_are_refused_and_delay_no_others(simulator, open_broker):
    """Each opened a link of its own, one after the other: all were in doubt when the time was over."""
    place = ServiceBusPlace(simulator)
    broker = open_broker(place.url)
    lost = [OutgoingMessage("no-such-queue", f"{number}", b"{}") for number in range(100)]
    *refused, confirmed = broker.publish([*lost, place.message("a")], 20.0)
    assert {type(outcome) for outcome in refused} == {Refused}
    assert isinstance(confirmed, Confirmed)


def test_what_was_confirmed_stays_so_if_the_client_fails_at_a_later_message(simulator, open_broker, monkeypatch):
    """Two messages that do not fit into one batch."""
    place = ServiceBusPlace(simulator)
    broker = open_broker(place.url)
    broker.publish([place.message("first")], 10.0)
    send, calls = ServiceBusSender.send_messages, itertools.count()

    async def fail_later(link, *arguments, **more):
        if next(calls):
            raise AttributeError("the client's own fault")
        await send(link, *arguments, **more)

    monkeypatch.setattr(ServiceBusSender, "send_messages", fail_later)
    outcomes = broker.publish([place.message(key, body=b"x" * 600_000) for key in "ab"], 10.0)
    assert [type(outcome) for outcome in outcomes] == [Confirmed, Unconfirmed]


def test_a_delivery_that_waits_here_ends_quietly_with_its_connection(simulator, fault_proxy, monkeypatch):
    """An exception of a task is reported where nobody can act on it, and for each delivery."""
    made = []
    give_back_later = MessageHold.give_back_later

    def watched(hold, seconds):
        give_back_later(hold, seconds)
        made.append(hold)

    monkeypatch.setattr(MessageHold, "give_back_later", watched)
    proxy = fault_proxy("127.0.0.1", simulator.port)
    place = ServiceBusPlace(simulator, lease=1.0)
    broker = ServiceBusBroker(proxy.url(place.url))
    broker.publish([place.message("a")], 10.0)
    broker.settle([(broker.receive(place.source, 1, 5.0)[0], Requeue(30.0))])
    proxy.cut()
    (hold,) = made
    over = asyncio.run_coroutine_threadsafe(asyncio.wait_for(ended(hold._task), 20.0), hold._task.get_loop())
    assert over.result(30.0) is None
    broker.close()


async def ended(task):
    """Return the error of a task, which has not asked for it itself."""
    await asyncio.wait({task})
    return task.exception()


def test_a_batch_that_is_refused_is_published_one_by_one(simulator, open_broker):
    """The queue takes less than Service Bus does, which the client cannot know before."""
    place = ServiceBusPlace(simulator, max_bytes=2_000)
    broker = open_broker(place.url)
    messages = [place.message(key, body=b"x" * size) for key, size in (("a", 10), ("b", 4_000), ("c", 10))]
    outcomes = broker.publish(messages, 10.0)
    assert [type(outcome) for outcome in outcomes] == [Confirmed, Refused, Confirmed]
    assert outcomes[1].final
    assert sorted(place.keys(broker)) == ["a", "c"]


def test_a_partitioned_entity_takes_messages_of_several_order_keys(simulator, open_broker):
    place = ServiceBusPlace(simulator, partitioned=True)
    broker = open_broker(place.url)
    for batch in ("1", "2"):
        messages = [place.message(f"{batch}-{order}", order=order) for order in "abc"]
        assert {type(outcome) for outcome in broker.publish(messages, 10.0)} == {Confirmed}
    assert len(place.keys(broker)) == 6


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("com.microsoft:server-busy", Refused),
        ("amqp:resource-limit-exceeded", Refused),
        ("amqp:internal-error", Unconfirmed),
    ],
)
def test_a_rejection_is_a_refusal_and_an_error_of_the_service_leaves_it_open(simulator, open_broker, condition, kind):
    place = ServiceBusPlace(simulator)
    broker = open_broker(place.url)
    simulator.refuse.append(AmqpRefusal(condition, "for the test"))
    assert [type(outcome) for outcome in broker.publish([place.message("a")], 10.0)] == [kind]
    assert [type(outcome) for outcome in broker.publish([place.message("a")], 10.0)] == [Confirmed]
    assert place.keys(broker) == ["a"]


def test_a_lock_that_lapsed_is_a_redelivery_and_its_late_completion_no_error(simulator, open_broker):
    place = ServiceBusPlace(simulator)
    broker = open_broker(place.url)
    broker.publish([place.message("a")], 10.0)
    (late,) = broker.receive(place.source, 1, 5.0)
    (again,) = broker.receive(place.source, 1, 5.0)
    broker.settle([(late, Ack())])
    assert (again.key, again.times) == ("a", 2)
    broker.settle([(again, Ack())])
    assert place.keys(broker, 2.0) == []


def test_what_is_rejected_goes_to_the_dead_letters(simulator, open_broker):
    place = ServiceBusPlace(simulator, 30.0)
    broker = open_broker(place.url)
    broker.publish([place.message("a", headers={"note": "x"})], 10.0)
    broker.settle([(broker.receive(place.source, 1, 5.0)[0], Reject("not ours"))])
    (dead,) = broker.receive(f"{place.source}/$DeadLetterQueue", 1, 5.0)
    assert (dead.key, dead.headers) == ("a", {"note": "x"})


class TestSessions:
    """A place that requires sessions: the order key is the session."""

    @pytest.fixture
    def place(self, simulator):
        return ServiceBusPlace(simulator, 30.0, sessions=True)

    def test_each_order_key_comes_in_order_to_one_receiver(self, place, open_broker):
        broker, other = open_broker(place.url), open_broker(place.url)
        messages = [place.message(f"{order}{number}", order=order) for number in range(5) for order in "ab"]
        assert {type(outcome) for outcome in broker.publish(messages, 10.0)} == {Confirmed}
        first = broker.receive(place.source, 3, 5.0)
        second = other.receive(place.source, 3, 5.0)
        assert len({delivery.key[0] for delivery in first}) == len({delivery.key[0] for delivery in second}) == 1
        assert first[0].key[0] != second[0].key[0]
        assert [delivery.key[1] for delivery in first] == ["0", "1", "2"]

    def test_one_receiver_takes_several_sessions(self, place, open_broker):
        broker = open_broker(place.url)
        broker.publish([place.message(f"{order}1", order=order) for order in "abcd"], 10.0)
        assert sorted(place.keys(broker, 3.0)) == ["a1", "b1", "c1", "d1"]

    def test_a_message_without_an_order_key_is_refused(self, place, open_broker):
        (refused,) = open_broker(place.url).publish([place.message("a")], 10.0)
        assert isinstance(refused, Refused)
        assert "amqp:not-allowed" in refused.why

    def test_what_is_held_comes_again_when_its_receiver_closes(self, place, open_broker):
        broker = open_broker(place.url)
        broker.publish([place.message("a", order="o")], 10.0)
        (held,) = broker.receive(place.source, 1, 5.0)
        broker.close()
        (again,) = open_broker(place.url).receive(place.source, 1, 5.0)
        assert (held.key, again.key) == ("a", "a")


def test_what_an_entity_loses_is_found(simulator, open_broker):
    bad = ServiceBusPlace(simulator, keep_seconds=60.0, max_deliveries=10)
    good = ServiceBusPlace(simulator, 60.0, dedupe_seconds=600.0)
    broker = open_broker(f"{bad.url}?dedupe=900")
    warnings = [finding.text for finding in broker.examine([bad.place]) if finding.level == "warning"]
    for said in ("keeps no keys", "within 60 seconds", "after 1 seconds", "after 10 deliveries"):
        assert any(said in text for text in warnings)
    assert any("write dedupe=600" in finding.text for finding in broker.examine([good.place]))
    findings = open_broker(f"{good.url}?dedupe=600").examine([good.place])
    assert {finding.level for finding in findings} == {"ok"}
    assert [finding.keeps for finding in findings if finding.keeps] == [14 * 86_400]


def test_a_key_that_is_refused_is_said_without_the_key(simulator, open_broker):
    place = ServiceBusPlace(simulator)
    broker = open_broker(place.url.replace(":a2V5", ":hunter2"))
    (refused,) = broker.publish([place.message("a")], 10.0)
    with pytest.raises(BrokerUnavailable) as caught:
        broker.receive(place.source, 1, 0.1)
    assert isinstance(refused, Refused)
    assert refused.away and not caught.value.missing
    for text in (refused.why, str(caught.value), broker.examine()[0].text):
        assert "refuses the policy 'RootManageSharedAccessKey'" in text
        assert "hunter2" not in text


def test_a_body_of_another_sender_is_taken_as_it_is(simulator, open_broker):
    place = ServiceBusPlace(simulator)
    broker = open_broker(place.url)
    broker.publish([place.message("warm")], 10.0)
    payload = encoded(Described(ULong(PROPERTIES), ["17"])) + encoded(Described(ULong(VALUE), "hello"))
    place.queue.store(message_of(payload))
    (first, second) = broker.receive(place.source, 2, 5.0)
    assert (second.key, second.body) == ("17", b"hello")
    broker.settle([(first, Ack()), (second, Ack())])
