"""The brokers: how each is named, what its URL takes, and what it does with a key that it has seen."""

from __future__ import annotations

from twiceproof.brokers import kafka, memory, nats, rabbitmq, redis_streams, service_bus, sqs, sqs_messages
from twiceproof.brokers.open import BROKERS, OPTIONS

from .table import code, table

__all__ = ["brokers"]

# The name, its opener, the extra, places to publish to and to receive from, what it does with a repeated key, for how
# long a delivery is held, the largest body.
KINDS = (
    (
        "RabbitMQ",
        "_rabbitmq",
        "rabbitmq",
        "an exchange (`NAME`, `/exchanges/NAME`), with the topic as routing key; `/queues/NAME`",
        "a queue",
        "no",
        "as long as its connection lives",
        rabbitmq.MOST_BYTES,
    ),
    (
        "NATS JetStream",
        "_nats",
        "nats",
        "a subject",
        "`STREAM/CONSUMER`",
        f"within {nats.DEDUPE:g} s",
        "the consumer's `ack_wait`",
        0,
    ),
    (
        "Redis Streams",
        "_redis_streams",
        "redis",
        "a stream",
        "`STREAM/GROUP`",
        "no",
        f"`lease=` ({redis_streams.LEASE:g} s)",
        redis_streams.MOST_BYTES,
    ),
    (
        "Amazon SQS (checked against an emulator)",
        "_sqs",
        "sqs",
        "a queue, or `ACCOUNT/QUEUE`",
        "the same",
        f"a FIFO queue within {sqs.DEDUPE:g} s",
        "`lease=`, or the queue's visibility timeout",
        sqs_messages.MOST_BYTES,
    ),
    (
        "Kafka (checked against librdkafka's mock cluster)",
        "_kafka",
        "kafka",
        "a topic",
        "`TOPIC/GROUP`",
        "no",
        "as long as its partition is the receiver's",
        kafka.MOST_BYTES,
    ),
    (
        "Azure Service Bus (checked against our simulator)",
        "_service_bus",
        "servicebus",
        "a queue or a topic",
        "a queue, or `TOPIC/Subscriptions/NAME`",
        "with duplicate detection: within its window",
        "the entity's lock",
        service_bus.MOST_BYTES,
    ),
    (
        "memory",
        "_memory",
        "",
        "any name",
        "the same name",
        f"within {memory.DEDUPE:g} s",
        f"{memory.LEASE:g} s",
        memory.MOST_BYTES,
    ),
)
DEFAULTS = {
    "prefetch": {"amqp": f"{rabbitmq.PREFETCH}", "kafka": f"{kafka.PREFETCH}"},
    "lease": {"redis+stream": f"{redis_streams.LEASE:g}", "sqs": "the queue's own"},
    "dedupe": {"servicebus": "0"},
    "sessions": {"servicebus": f"{service_bus.SESSIONS}"},
    "management": {"servicebus": "the URL's port"},
}


def brokers(_: str) -> list[str]:
    head = ("broker", "URL", "extra", "options", "publish to", "receive from", "drops a key again", "held for", "body")
    return table(head, [_row(*kind) for kind in KINDS])


def _row(name: str, opener: str, extra: str, to: str, source: str, drops: str, held: str, most: int) -> tuple[str, ...]:
    schemes = [scheme for scheme, opens in BROKERS.items() if opens.__name__ == opener]
    options = [f"`{option}=` ({DEFAULTS[option][scheme]})" for scheme in schemes for option in OPTIONS.get(scheme, ())]
    return (
        name,
        " ".join(code(f"{scheme}://{'name' if scheme == 'memory' else '…'}") for scheme in schemes),
        f"`[{extra}]`" if extra else "none",
        "; ".join(options),
        to,
        source,
        drops,
        held,
        f"{most // 1024 // 1024} MiB" if most else "the server's `max_payload`",
    )
