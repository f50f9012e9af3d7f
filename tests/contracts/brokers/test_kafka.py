"""Kafka keeps the contract. Checked against librdkafka's mock cluster: no disk, no recognition of repeated requests."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.contracts.brokers.places import ThroughProxy, numbers
from tests.servers.kafka import JOIN_GROUP, OFFSET_COMMIT, PRODUCE, KafkaMock
from twiceproof.brokers import kafka_group
from twiceproof.brokers.base import Ack, Confirmed, OutgoingMessage, Refused, Reject, Requeue, Unconfirmed
from twiceproof.brokers.kafka import MOST_BYTES, KafkaBroker
from twiceproof.clock import Clock
from twiceproof.errors import BrokerUnavailable
from twiceproof.prove.broker_contract import OrderedBrokerContract

pytestmark = [pytest.mark.server, pytest.mark.slow]

SIZES = [("large", MOST_BYTES + 1), ("small", 10)]


@pytest.fixture
def mock(monkeypatch):
    """After a member has left, the mock lets the next wait for almost a session."""
    monkeypatch.setitem(kafka_group.SETTINGS, "session.timeout.ms", 2_000)
    monkeypatch.setitem(kafka_group.SETTINGS, "heartbeat.interval.ms", 200)
    cluster = KafkaMock()
    yield cluster
    cluster.close()


class TestKafkaMock(ThroughProxy, OrderedBrokerContract):
    nowhere, counts, soon = "no-such-topic", False, 30.0
    partitions = 1

    @pytest.fixture(autouse=True)
    def server(self, mock, fault_proxy, monkeypatch):
        monkeypatch.setitem(kafka_group.SETTINGS, "session.timeout.ms", 4_000)  # a slow machine is not a dead member
        self.proxy = fault_proxy(mock.host, mock.port)
        mock.advertise(self.proxy.host, self.proxy.port)
        self.place = f"orders-{next(numbers)}"
        self.source = f"{self.place}/work"
        mock.create_topic(self.place, self.partitions)
        self.url = self.proxy.url(mock.url)

    def make_broker(self):
        return KafkaBroker(self.url)

    open_again = make_broker


@pytest.fixture
def place(mock):
    """A topic with a topic for its dead letters, and a broker on it."""
    mock.create_topic("orders")
    mock.create_topic("orders.dead")
    broker = KafkaBroker(mock.url)
    yield broker
    broker.close()


def stored(broker, *names):
    outcomes = broker.publish([OutgoingMessage("orders", name, b"{}", order="a") for name in names], 10.0)
    assert {type(outcome) for outcome in outcomes} == {Confirmed}


def taken(broker, count, source="orders/work"):
    found = []
    for _ in range(300):
        found += broker.receive(source, count - len(found), 0.1) if len(found) < count else []
    assert len(found) == count
    return found


def test_it_counts_what_is_not_settled_in_all_partitions(mock):
    """By its group; another has settled nothing."""
    mock.create_topic("many", 3)
    broker = KafkaBroker(mock.url)
    messages = [OutgoingMessage("many", f"k{n}", b"{}", order=f"o{n}") for n in range(9)]
    assert broker.waiting("many/work") == 0
    assert {type(outcome) for outcome in broker.publish(messages, 10.0)} == {Confirmed}
    found = taken(broker, 4, "many/work")
    assert broker.waiting("many/work") == 9
    broker.settle([(delivery, Ack()) for delivery in found])
    broker.close()  # commits
    assert [broker.waiting(f"many/{group}") for group in ("work", "other")] == [5, 9]
    assert broker.waiting("no-such-topic/work") is None
    mock.go_down()
    assert broker.waiting("many/work") is None
    broker.close()


def test_what_is_rejected_is_copied_to_the_dead_letters_and_then_committed(mock, place):
    stored(place, "a", "b")
    first, second = taken(place, 2)
    place.settle([(first, Reject("poison")), (second, Ack())])
    (dead,) = taken(place, 1, "orders.dead/clerks")
    assert (dead.key, dead.body, dead.content_type) == ("a", b"{}", "application/json")


def test_a_rejected_message_waits_while_the_topic_of_dead_letters_cannot_be_used(mock, place):
    stored(place, "a")
    (rejected,) = taken(place, 1)
    mock.spoil_topic("orders.dead", KafkaError.LEADER_NOT_AVAILABLE)
    place.settle([(rejected, Reject("poison"))])
    assert rejected.tag.partition.watermark == rejected.sequence  # not settled
    mock.spoil_topic("orders.dead")
    (again,) = taken(place, 1)
    place.settle([(again, Reject("poison"))])
    assert [delivery.key for delivery in taken(place, 1, "orders.dead/clerks")] == ["a"]


def test_a_commit_that_is_refused_is_tried_again(mock, place):
    stored(place, "a", "b")
    first, second = taken(place, 2)
    mock.answer_with(OFFSET_COMMIT, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.REBALANCE_IN_PROGRESS)
    place.settle([(first, Ack()), (second, Ack())])
    observer = Consumer({"bootstrap.servers": f"{mock.host}:{mock.port}", "group.id": "work"})
    for _ in range(50):
        (committed,) = observer.committed([TopicPartition("orders", 0)], 5.0)
        if committed.offset != 2:
            assert place.receive("orders/work", 5, 0.1) == []
    observer.close()
    assert committed.offset == 2


def test_a_member_that_joins_gets_no_message_twice_while_the_first_lives(mock, monkeypatch):
    """Partitions move while deliveries are held: what is held is waited for, what is settled is committed."""
    revoking, revoke = threading.Event(), kafka_group.GroupMember._on_revoke

    def begin_to_revoke(member, *arguments):
        revoking.set()
        revoke(member, *arguments)

    monkeypatch.setattr(kafka_group.GroupMember, "_on_revoke", begin_to_revoke)
    monkeypatch.setitem(kafka_group.SETTINGS, "session.timeout.ms", 20_000)  # a busy machine is not a dead member
    monkeypatch.setattr(kafka_group, "REVOKE_SECONDS", 60.0)
    mock.create_topic("orders", 4)
    first, second = KafkaBroker(mock.url), KafkaBroker(mock.url)
    names = {f"key-{number}" for number in range(40)}
    first.publish([OutgoingMessage("orders", name, b"", order=name) for name in names], 10.0)
    held = taken(first, 40)
    while not revoking.is_set():
        assert second.receive("orders/work", 50, 0.1) == []
    assert second.receive("orders/work", 50, 2.0) == []
    first.settle([(delivery, Ack()) for delivery in held])
    more = [*second.receive("orders/work", 50, 3.0), *first.receive("orders/work", 50, 1.0)]
    assert ({delivery.key for delivery in held}, more) == (names, [])
    first.close()
    second.close()


class WatchedConsumer:
    """A consumer of which is known what it still had when it was closed."""

    def __init__(self, consumer):
        self._consumer, self.had = consumer, None

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def close(self):
        self.had = self._consumer.assignment()
        self._consumer.close()


def test_a_member_gives_its_partitions_back_before_it_closes(mock):
    """librdkafka may wait for ever if it has to report a rebalance while it closes."""
    mock.create_topic("orders", 3)
    broker = KafkaBroker(mock.url)
    stored(broker, "a")
    (held,) = taken(broker, 1)
    member = held.tag.member
    member._consumer = watched = WatchedConsumer(member._consumer)
    assert len(member._partitions) == 3
    member.close(60.0)
    assert (member._thread.is_alive(), watched.had) == (False, [])
    broker.close()


class Storm:
    """Members that join and leave without pause. `claimed`: what a ledger would have before the acknowledgement."""

    MOST_TAKEN = 20  # deliveries, after which a member leaves

    def __init__(self, mock, source, messages):
        self.mock, self.source, self.messages = mock, source, messages
        self.claimed, self.passed, self.members = set(), set(), 0
        self.over = threading.Event()

    def member(self, seed):
        dice = random.Random(seed)
        while not self.over.is_set():
            broker = KafkaBroker(self.mock.url)
            self.members += 1
            self.live(broker, dice, dice.randint(3, self.MOST_TAKEN))
            broker.close()

    def live(self, broker, dice, left):
        """It leaves after so many deliveries, and before when nothing comes: what it left as it is waits for that.

        It does not leave before its first delivery, however long the group takes to give it a partition.
        """
        is_new = True
        while left > 0 and not self.over.is_set():
            found = broker.receive(self.source, min(5, left), 0.3)
            if not found and not is_new:
                return
            for delivery in found:
                self.settle(broker, delivery, dice.random())
            is_new, left = is_new and not found, left - len(found)

    def settle(self, broker, delivery, chance):
        """One in ten is left as it is, one in ten is put back; the others are claimed and then acknowledged."""
        if chance < 0.8:
            self.claimed.add((int(delivery.partition), delivery.sequence))
            if len(self.claimed) == self.messages:
                self.over.set()
        if chance < 0.9:
            broker.settle([(delivery, Ack() if chance < 0.8 else Requeue(0.05))])

    def watch(self, partitions):
        """Offsets that are committed, and what they have passed although it was not claimed."""
        topic, _, group = self.source.partition("/")
        observer = Consumer({"bootstrap.servers": f"{self.mock.host}:{self.mock.port}", "group.id": group})
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        while not self.over.wait(0.02):
            with contextlib.suppress(KafkaException):
                for one in observer.committed(asked, 2.0):
                    self.passed |= {(one.partition, at) for at in range(one.offset)} - self.claimed
            if self.passed:
                self.over.set()
        observer.close()


def test_in_a_storm_of_rebalances_no_offset_passes_what_is_not_claimed(mock, monkeypatch):
    """A rebalance takes a second less than a session. One that ends for a member that is slow belongs to the storm."""
    monkeypatch.setitem(kafka_group.SETTINGS, "session.timeout.ms", 1_300)
    partitions, names = 4, [f"key-{number}" for number in range(50)]
    mock.create_topic("orders", partitions)
    sender = KafkaBroker(mock.url)
    sender.publish([OutgoingMessage("orders", name, b"", order=name) for name in names], 10.0)
    storm = Storm(mock, "orders/work", len(names))
    threads = [threading.Thread(target=storm.member, args=(seed,)) for seed in range(3)]
    threads.append(threading.Thread(target=storm.watch, args=(partitions,)))
    for thread in threads:
        thread.start()
    done = storm.over.wait(600)
    storm.over.set()
    for thread in threads:
        thread.join(60)
    sender.close()
    assert storm.passed == set()
    assert done, f"{len(storm.claimed)} of {len(names)} were claimed by {storm.members} members"
    assert storm.members > 3  # some left, and others came


def test_a_late_word_about_a_lost_partition_settles_nothing(mock, place):
    stored(place, "a")
    (late,) = taken(place, 1)
    member = late.tag.member
    member._on_lost(None, [TopicPartition("orders", 0)])
    for word in (Reject(), Requeue(), Ack()):
        place.settle([(late, word)])
    assert place.receive("orders.dead/clerks", 1, 1.0) == []
    place.close()
    other = KafkaBroker(mock.url)
    assert [delivery.key for delivery in taken(other, 1)] == ["a"]
    other.close()


def test_a_group_that_this_user_may_not_join_is_named(mock, place):
    """Its thread polls meanwhile, and lets nobody else into its client."""
    mock.answer_with(JOIN_GROUP, *[KafkaError.GROUP_AUTHORIZATION_FAILED] * 50)
    with pytest.raises(BrokerUnavailable, match=r"'work' cannot be used \(GROUP_AUTHORIZATION_FAILED\)") as caught:
        while True:
            assert place.receive("orders/work", 1, 0.1) == []
    assert caught.value.missing is False


def test_a_reader_reads_on_after_any_error_of_its_client(mock, place):
    """An error leads to a question about the topic, beside the thread that polls."""
    stored(place, "a")
    (first,) = taken(place, 1)
    for _ in range(20):
        first.tag.member._on_error(KafkaError(KafkaError._TRANSPORT))
        assert place.receive("orders/work", 1, 0.01) == []
    place.settle([(first, Ack())])
    stored(place, "b")
    assert [delivery.key for delivery in taken(place, 1)] == ["b"]


def test_others_publish_while_a_member_joins(mock, place, monkeypatch):
    """A broker that a relay and a reader share."""
    joining, joined = threading.Event(), threading.Event()

    def join(member):
        joining.set()
        assert joined.wait(60)

    monkeypatch.setattr(kafka_group.GroupMember, "start", join)
    reader = threading.Thread(target=place.receive, args=("orders/work", 1, 0.0), daemon=True)
    reader.start()
    assert joining.wait(60)
    sender = threading.Thread(target=stored, args=(place, "a"), daemon=True)
    sender.start()
    sender.join(60)
    assert not sender.is_alive()
    joined.set()
    reader.join(60)


def test_after_a_fatal_error_of_the_client_the_next_one_publishes(mock, place):
    """Of a batch, what was handed over may be stored; what was not is not to blame."""
    stored(place, "before")
    mock.answer_with(PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    messages = [OutgoingMessage("orders", key, b"{}") for key in ("1", "1", "2")]
    first, second, third = place.publish(messages, 10.0)
    assert isinstance(first, Unconfirmed) and isinstance(third, Unconfirmed)
    assert isinstance(second, Unconfirmed) or (second.away and not second.final)
    stored(place, "3")


def test_after_a_fatal_error_of_the_client_dead_letters_are_copied(mock, place):
    stored(place, "a")
    (rejected,) = taken(place, 1)
    producer = place._producer
    mock.answer_with(PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    place.settle([(rejected, Reject("poison"))])
    assert place._producer is not producer
    (again,) = taken(place, 1)
    place.settle([(again, Reject("poison"))])
    assert [delivery.key for delivery in taken(place, 1, "orders.dead/clerks")] == ["a"]


def test_nothing_passes_a_message_that_the_cluster_refuses(mock, place):
    stored(place, "before")
    mock.answer_with(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    outcomes = place.publish([OutgoingMessage("orders", key, b"{}", order="a") for key in ("1", "2")], 10.0)
    assert [type(outcome) for outcome in outcomes] == [Refused, Refused]
    stored(place, "1", "2")
    assert [delivery.key for delivery in taken(place, 3)] == ["before", "1", "2"]


@contextlib.contextmanager
def late_answers(mock):
    """Later than a machine is ever slow. Nobody waits for them."""
    mock.delay_answers(600.0)
    yield
    mock.delay_answers(0)


def test_an_answer_that_is_late_is_unconfirmed_and_its_repetition_a_second_copy(mock, place):
    """With one key, so that the receiver's claim makes it one."""
    stored(place, "before")
    with late_answers(mock):
        (outcome,) = place.publish([OutgoingMessage("orders", "a", b"{}")], 1.0)
    assert isinstance(outcome, Unconfirmed)
    stored(place, "a")
    assert [delivery.key for delivery in taken(place, 3)] == ["before", "a", "a"]


@pytest.mark.parametrize("looks", [2, 3])
def test_a_publication_ends_in_time_whenever_it_looks_at_the_clock(mock, looks):
    """A process may stand still between two looks. To librdkafka, a time below zero is no limit."""
    times = itertools.repeat(0.0)
    mock.create_topic("orders")
    with contextlib.closing(KafkaBroker(mock.url, clock=Clock(monotonic=lambda: next(times)))) as broker:
        stored(broker, "before")
        with late_answers(mock):
            times = itertools.count(0.0, 1.0 / (looks + 0.5))
            (outcome,) = broker.publish([OutgoingMessage("orders", "a", b"{}")], 1.0)
    assert isinstance(outcome, Unconfirmed)


def test_a_broker_that_is_down_refuses_and_comes_back(mock, place):
    stored(place, "a")
    place._known.clear()  # as after ten seconds
    mock.go_down()
    (outcome,) = place.publish([OutgoingMessage("orders", "b", b"{}")], 1.0)
    assert isinstance(outcome, Refused) and outcome.away
    mock.come_up()
    stored(place, "b")
    assert [delivery.key for delivery in taken(place, 2)] == ["a", "b"]


def test_a_missing_topic_or_group_is_named(mock, place):
    for source in ("nowhere/work", "orders", "orders/"):
        with pytest.raises(BrokerUnavailable, match=source.partition("/")[0]) as caught:
            place.receive(source, 1, 0.1)
        assert caught.value.missing is True


def test_a_body_that_is_too_large_is_refused_for_good(mock, place):
    (large, small) = place.publish([OutgoingMessage("orders", key, b"x" * size) for key, size in SIZES], 10.0)
    assert isinstance(large, Refused) and large.final
    assert isinstance(small, Confirmed)


def test_a_topic_whose_messages_no_one_can_reject_is_found(mock, place):
    mock.create_topic("bare")
    texts = {one.subject: one.text for one in place.examine(["bare/work", "orders/work"]) if "bare.dead" in one.text}
    assert list(texts) == ["bare/work"]
