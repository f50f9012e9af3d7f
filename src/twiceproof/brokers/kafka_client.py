"""Kafka's settings, errors and records: from a URL to librdkafka's settings, from a message to a record and back; how
far a consumer group is behind.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from ..errors import Misuse
from .base import BrokerFinding, OutgoingMessage, QueueDelivery
from .publishing import native_id

__all__ = [
    "ANSWER_SECONDS",
    "MISSING",
    "client_settings",
    "count_uncommitted",
    "delivery_of",
    "describe",
    "examine_topic",
    "record_of",
    "topic_problem",
    "unreachable",
]

PORT = 9092
ANSWER_SECONDS = 5.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION, KafkaError._UNKNOWN_TOPIC}
KEY, CONTENT_TYPE = "message-id", "content-type"
SHORT_RETENTION = 86_400.0  # seconds, below which it is a warning


# -- where ---------------------------------------------------------------------------------------


def client_settings(url: str) -> dict[str, Any]:
    """librdkafka's settings for all clients of this URL."""
    parts = urlsplit(url)
    tls = parts.scheme == "kafkas"
    servers = ",".join(f"{host}:{port}" for host, port in _addresses(parts))
    settings = {"bootstrap.servers": servers, "log_level": 0, "security.protocol": "SSL" if tls else "PLAINTEXT"}
    mechanism = parts.path.strip("/") or MECHANISMS[0]
    if mechanism not in MECHANISMS:
        raise Misuse(f"In the broker's URL, the path is not a way to log in; use one of {', '.join(MECHANISMS)}.")
    if parts.username:
        settings |= {
            "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": unquote(parts.username),
            "sasl.password": unquote(parts.password or ""),
        }
    return settings


def _addresses(parts: SplitResult) -> list[tuple[str, int]]:
    return [(host, parts.port or PORT) for host in (parts.hostname or "").split(",") if host]


def _place(url: str) -> str:
    return ",".join(f"{host}:{port}" for host, port in _addresses(urlsplit(url)))


def unreachable(url: str, seconds: float) -> str | None:
    """Return why none of the addresses accepts a connection, or None. librdkafka itself would try until the time
    limit.
    """
    failure: OSError | None = None
    for address in _addresses(urlsplit(url)):
        try:
            socket.create_connection(address, max(0.05, seconds)).close()
        except OSError as error:
            failure = error
        else:
            return None
    why = type(failure).__name__
    return f"{_place(url)} cannot be reached ({why}); check the address in the URL, and the network."


def describe(url: str, error: KafkaException) -> str:
    """Describe an error that is not about a topic, without the password."""
    found: KafkaError = error.args[0]
    if found.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        return f"{_place(url)} refuses the user or the password; correct them in the URL."
    return f"{_place(url)} does not answer ({found.name()}); check the cluster, and how this client logs in."


def topic_problem(topic: str, error: KafkaError | None) -> str | None:
    if error is None:
        return None
    if error.code() in MISSING:
        return f"There is no topic {topic!r}; create it, or correct the name."
    return f"The topic {topic!r} cannot be used ({error.name()}); check its leader and the permissions."


# -- records -------------------------------------------------------------------------------------


def record_of(message: OutgoingMessage) -> dict[str, Any]:
    """Return the arguments of `produce`. The order key chooses the partition; our own headers come last."""
    headers = [(name, value.encode()) for name, value in message.headers.items()]
    headers += [(CONTENT_TYPE, message.content_type.encode()), (KEY, native_id(message.key).encode())]
    order = {"key": message.order.encode()} if message.order else {}
    return {"topic": message.place, "value": message.body, "headers": headers, **order}


def delivery_of(place: str, record: Any, tag: Any, times: int) -> QueueDelivery:
    headers = {name.lower(): (value or b"").decode(errors="replace") for name, value in record.headers() or ()}
    return QueueDelivery(
        place=place,
        body=record.value() or b"",
        headers=headers,
        tag=tag,
        key=headers.get(KEY, ""),
        sequence=record.offset(),
        partition=str(record.partition()),
        times=times if times > 1 else None,
        content_type=headers.get(CONTENT_TYPE, ""),
    )


# -- examining -----------------------------------------------------------------------------------


def examine_topic(place: str, replicas: int, settings: Mapping[str, str] | None) -> Iterator[BrokerFinding]:
    """Report what a topic's settings can lose. `settings` is None where the cluster does not reveal them."""
    if replicas < 2:
        text = "It has one replica: what was confirmed is lost with its disk. Create it with a replication factor of 3."
        yield BrokerFinding("warning", place, text)
    if settings is None:
        text = "The cluster does not tell the topic's settings; check min.insync.replicas and retention.ms yourself."
        yield BrokerFinding("warning", place, text)
        return
    if replicas > 1 and int(settings.get("min.insync.replicas", "1")) < 2:
        text = "It confirms what only one replica has, and loses it with that one. Set min.insync.replicas to 2."
        yield BrokerFinding("warning", place, text)
    yield _examine_retention(place, settings)


def _examine_retention(place: str, settings: Mapping[str, str]) -> BrokerFinding:
    if "compact" in settings.get("cleanup.policy", ""):
        text = "It keeps only the last message of an order key. Set cleanup.policy to delete."
        return BrokerFinding("warning", place, text)
    keeps = int(settings.get("retention.ms", "-1")) / 1000
    if keeps < 0:
        return BrokerFinding("ok", place, "It keeps messages for ever.")
    if keeps < SHORT_RETENTION:
        text = f"It loses what is not received within {keeps:g} seconds. Set retention.ms to 604800000."
        return BrokerFinding("warning", place, text, keeps=keeps)
    return BrokerFinding("ok", place, f"It keeps messages for {keeps:g} seconds.", keeps=keeps)


# -- how far a group is behind -------------------------------------------------------------------


def count_uncommitted(admin: AdminClient, place: str) -> int:
    """Return how many offsets lie between what the group has committed and the end of each partition of its topic.

    Of a compacted topic, or one with transactions, some of these offsets hold no message. Raises KafkaException.
    """
    topic, _, group = place.rpartition("/")
    found = admin.list_topics(topic, ANSWER_SECONDS).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    numbers = found.partitions
    partitions = [TopicPartition(topic, number) for number in numbers]
    earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    first, last = (_offsets(admin, partitions, spec) for spec in (earliest, latest))
    asked = [ConsumerGroupTopicPartitions(group, partitions)]
    (answer,) = admin.list_consumer_group_offsets(asked, request_timeout=ANSWER_SECONDS).values()
    committed = {one.partition: one.offset for one in answer.result().topic_partitions}
    # Below zero: nothing was committed. Records that the retention has removed are not waited for.
    return sum(last[number] - max(first[number], committed.get(number, -1)) for number in numbers)


def _offsets(admin: AdminClient, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
    asked = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=ANSWER_SECONDS)
    return {partition.partition: answer.result().offset for partition, answer in asked.items()}
