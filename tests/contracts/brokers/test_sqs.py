"""Amazon SQS keeps the contract, with FIFO queues and with standard ones. Checked against ministack, an emulator."""

from __future__ import annotations

import hashlib
import os
import time

import boto3
import pytest

from tests.contracts.brokers.places import SqsPlace, StandardSqsPlace, ThroughProxy, opening
from tests.servers.moto import moto_server
from twiceproof.brokers.base import Ack, Confirmed, Extend, OutgoingMessage, Refused, Reject, Requeue
from twiceproof.brokers.sqs import SqsBroker
from twiceproof.errors import BrokerUnavailable
from twiceproof.prove.broker_contract import LeasedBrokerContract

pytestmark = [pytest.mark.server, pytest.mark.slow]

KEYS = {"aws_access_key_id": "AKIA17", "aws_secret_access_key": "secret"}


class TestFifoQueue(ThroughProxy, LeasedBrokerContract):
    kind = SqsPlace
    nowhere = SqsPlace.nowhere
    tells = False  # SQS answers a repeated key as it answered the first
    largest = 190_000  # the emulator takes 256 KiB, and Base64 a third of it; SQS itself takes a megabyte

    @pytest.fixture(autouse=True)
    def server(self, sqs_server, fault_proxy):
        self.proxy = fault_proxy(sqs_server.host, sqs_server.port)
        made = self.kind(sqs_server)
        self.place = self.source = made.place

    def make_broker(self):
        return SqsBroker(f"sqs+http://test:test@{self.proxy.host}:{self.proxy.port}")

    open_again = make_broker


class TestStandardQueue(TestFifoQueue):
    kind = StandardSqsPlace
    nowhere = StandardSqsPlace.nowhere


@pytest.fixture
def open_broker():
    with opening(SqsBroker) as make:
        yield make


def test_of_a_batch_one_is_refused_and_the_others_are_stored(sqs_server, open_broker):
    """The queue takes less than SQS does, which the client cannot know before."""
    place = SqsPlace(sqs_server, MaximumMessageSize="1024")
    broker = open_broker(place.url)
    messages = [place.message(key, body=b"x" * size) for key, size in (("a", 10), ("b", 2_000), ("c", 10))]
    outcomes = broker.publish(messages, 10.0)
    assert [type(outcome) for outcome in outcomes] == [Confirmed, Refused, Confirmed]
    assert "1024" in outcomes[1].why
    assert sorted(place.keys(broker)) == ["a", "c"]


def test_of_a_batch_refused_as_a_whole_each_message_has_its_own_outcome(open_broker):
    """moto refuses a batch for one message in it; ministack, and SQS, refuse that message."""
    with moto_server() as endpoint:
        host = endpoint.partition("//")[2]
        client = boto3.client("sqs", "eu-west-1", endpoint_url=endpoint, **KEYS)
        client.create_queue(QueueName="orders", Attributes={"MaximumMessageSize": "1024"})
        broker = open_broker(f"sqs+http://AKIA17:secret@{host}/eu-west-1")
        sizes = (("a", 10), ("b", 2_000), ("c", 10))
        outcomes = broker.publish([OutgoingMessage("orders", key, b"x" * size) for key, size in sizes], 10.0)
        assert [type(outcome) for outcome in outcomes] == [Confirmed, Refused, Confirmed]
        assert not outcomes[1].away and "InvalidParameterValue" in outcomes[1].why
        (alone,) = broker.publish([OutgoingMessage("orders", "b", b"x" * 2_000)], 10.0)
        assert isinstance(alone, Refused) and not alone.away


def test_a_queue_is_looked_for_once_for_all_messages_of_a_batch(sqs_server, open_broker, monkeypatch):
    """One that is missing, too: 500 queries took the time of the messages to other queues."""
    place = SqsPlace(sqs_server)
    broker = open_broker(place.url)
    ask, asked = SqsBroker._ask, []
    monkeypatch.setattr(SqsBroker, "_ask", lambda self, what, **more: asked.append(what) or ask(self, what, **more))
    lost = [OutgoingMessage("no-such-queue", f"{number}", b"{}") for number in range(50)]
    *refused, confirmed = broker.publish([*lost, place.message("a")], 20.0)
    assert {(type(outcome), outcome.away) for outcome in refused} == {(Refused, False)}
    assert isinstance(confirmed, Confirmed)
    assert asked == ["get_queue_url"] * 2


def test_of_an_order_key_nothing_follows_the_one_refused_in_a_batch(sqs_server, open_broker):
    place = SqsPlace(sqs_server, MaximumMessageSize="1024")
    broker = open_broker(place.url)
    messages = [place.message(key, order="o", body=b"x" * size) for key, size in (("a", 10), ("b", 2_000), ("c", 10))]
    assert [type(outcome) for outcome in broker.publish(messages, 10.0)] == [Confirmed, Refused, Refused]
    assert place.keys(broker) == ["a"]


def test_a_body_above_what_sqs_takes_is_refused_for_good(sqs_server, open_broker):
    """As text it would fit; in Base64 it does not."""
    place = SqsPlace(sqs_server)
    broker = open_broker(place.url)
    outcomes = broker.publish([place.message("a", body=b"\xff" * 900_000), place.message("b")], 10.0)
    assert [type(outcome) for outcome in outcomes] == [Refused, Confirmed]
    assert outcomes[0].final


def test_the_order_key_is_the_group_and_the_key_the_deduplication_id(sqs_server, open_broker):
    place = SqsPlace(sqs_server, lease=30)
    broker = open_broker(place.url)
    odd = "Grüße " * 30
    broker.publish([place.message("order:17:paid", order="order:17"), place.message(odd)], 10.0)
    found = place.client.receive_message(
        QueueUrl=place.queue_url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
    )["Messages"]
    ids = {(one["Attributes"]["MessageGroupId"], one["Attributes"]["MessageDeduplicationId"]) for one in found}
    hashed = f"sha256:{hashlib.sha256(odd.encode()).hexdigest()}"
    assert ids == {("order:17", "order:17:paid"), (hashed, hashed)}


def test_a_message_that_is_held_keeps_those_after_it_in_its_group(sqs_server, open_broker):
    place = SqsPlace(sqs_server, lease=30)
    broker = open_broker(place.url)
    broker.publish([place.message(key, order="o") for key in ("1", "2")], 10.0)
    (first,) = broker.receive(place.source, 1, 5.0)
    assert broker.receive(place.source, 1, 0.3) == []
    broker.settle([(first, Requeue())])
    assert [delivery.key for delivery in broker.receive(place.source, 2, 5.0)] == ["1", "2"]


def test_what_is_rejected_goes_to_the_dead_letters_as_it_was(sqs_server, open_broker):
    place = SqsPlace(sqs_server, dead=True)
    broker = open_broker(place.url)
    broker.publish([place.message("a", body=b"\x00", headers={"note": "x"}, order="o")], 10.0)
    broker.settle([(broker.receive(place.source, 1, 5.0)[0], Reject("not ours"))])
    (dead,) = broker.receive(f"dead-{place.source}", 5, 5.0)
    assert (dead.key, dead.body, dead.headers["note"], dead.partition) == ("a", b"\x00", "x", "o")
    assert broker.receive(place.source, 5, 1.5) == []


def test_a_message_of_another_sender_is_taken_as_it_is(sqs_server, open_broker):
    place = StandardSqsPlace(sqs_server)
    attribute = {"DataType": "String", "StringValue": "[not json"}
    place.client.send_message(
        QueueUrl=place.queue_url,
        MessageBody="hello",
        MessageAttributes={"Headers": attribute, "Ce-Id": {**attribute, "StringValue": "17"}},
    )
    (delivery,) = open_broker(place.url).receive(place.source, 1, 5.0)
    assert (delivery.key, delivery.body, delivery.headers) == ("17", b"hello", {"ce-id": "17"})


def test_an_old_receipt_is_not_used(sqs_server, open_broker):
    """SQS may delete a message by an old receipt, although another has it now."""
    place = SqsPlace(sqs_server)
    first, second = open_broker(place.url), open_broker(place.url)
    first.publish([place.message("a")], 10.0)
    (old,) = first.receive(place.source, 1, 5.0)
    (new,) = second.receive(place.source, 1, 5.0)
    calls = []
    first._client.meta.events.register("before-call.sqs", lambda **_: calls.append("call"))
    first.settle([(old, Ack())])
    assert (new.times, calls) == (2, [])


def test_a_delivery_is_held_by_renewals_for_longer_than_its_visibility(sqs_server, open_broker):
    """On a slow machine a renewal may come too late: then another queue is tried, on which deliveries last longer."""
    tries = (others_found_beside_renewals(SqsPlace(sqs_server, lease=2**n), open_broker) for n in range(6))
    assert next(found for found in tries if found is not None) == []


def others_found_beside_renewals(place, open_broker):
    """None: a renewal, or the acknowledgement, came when the delivery was not held any more."""
    broker, other = open_broker(place.url), open_broker(place.url)
    broker.publish([place.message("a")], 10.0)
    (delivery,) = broker.receive(place.source, 1, 5.0)
    until, found = delivery.until, []
    for word in [*[Extend(float(place.lease))] * 4, Ack()]:
        start = time.monotonic()
        broker.settle([(delivery, word)])
        if time.monotonic() > until:
            return None
        until = start + place.lease
        found += other.receive(place.source, 1, (1.5 if word == Ack() else 0.6) * place.lease)
    return found


@pytest.mark.parametrize(("kind", "window"), [(SqsPlace, 300.0), (StandardSqsPlace, 0.0)])
def test_the_window_is_that_of_the_queues_published_to(sqs_server, open_broker, kind, window):
    fifo, other = SqsPlace(sqs_server), kind(sqs_server)
    broker = open_broker(fifo.url)
    broker.publish([fifo.message("a"), other.message("a")], 10.0)
    assert broker.dedupe == window


def test_what_a_queue_loses_is_found(sqs_server, open_broker):
    bad = StandardSqsPlace(sqs_server, MessageRetentionPeriod="60")
    good = SqsPlace(sqs_server, lease=30, dead=True)
    broker = open_broker(bad.url)
    warnings = [finding.text for finding in broker.examine([bad.place]) if finding.level == "warning"]
    for said in ("keeps no order", "within 60 seconds", "after 1 seconds", "no dead-letter queue"):
        assert any(said in text for text in warnings)
    findings = broker.examine([good.place])
    assert {finding.level for finding in findings} == {"ok"}
    assert [finding.keeps for finding in findings if finding.keeps] == [345_600]


def test_a_login_that_fails_is_said_without_the_secret(open_broker):
    """moto checks signatures; ministack takes any."""
    with moto_server(signed=True) as endpoint:
        broker = open_broker(f"sqs+http://AKIA17:hunter2@{endpoint.partition('//')[2]}/eu-west-1")
        (refused,) = broker.publish([OutgoingMessage("orders", "a", b"{}")], 10.0)
        with pytest.raises(BrokerUnavailable) as caught:
            broker.receive("orders", 1, 0.1)
        assert isinstance(refused, Refused)
        assert refused.away and not caught.value.missing
        (unlisted,), (server, unread) = broker.examine(), broker.examine(["orders"])
        assert (server.level, unread.level, unread.subject) == ("ok", "error", "orders")
        for text in (refused.why, str(caught.value), unlisted.text, unread.text):
            assert "refuses the access key" in text
            assert "hunter2" not in text


def test_without_credentials_it_is_said_where_they_are_looked_for(open_broker, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    (refused,) = open_broker("sqs+http://127.0.0.1:1").publish([OutgoingMessage("orders", "a", b"{}")], 10.0)
    assert refused.away and "AWS_ACCESS_KEY_ID" in refused.why


def test_a_forked_child_takes_nothing_of_its_parents(sqs_server, open_broker):
    place = SqsPlace(sqs_server, lease=30)
    broker = open_broker(place.url)
    broker.publish([place.message("a"), place.message("b")], 10.0)
    held = broker.receive(place.source, 1, 5.0)
    child = os.fork()
    if child == 0:
        broker.close()  # gives back nothing: the delivery is the parent's
        found = broker.receive(place.source, 5, 1.0)
        os._exit(0 if len(found) == 1 and found[0].key != held[0].key else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
