"""The brokers: how each is named, what its URL takes, and what it does with a key that it has seen."""

from __future__ import annotations

from twiceproof.brokers import memory, nats, rabbitmq, redis_streams
from twiceproof.brokers.open import BROKERS, OPTIONS

from .table import code, table

__all__ = ["brokers"]

# The name, its opener, the extra, places to publish to and to receive from, dedupe in seconds, lease, largest body.
KINDS = (
    (
        "RabbitMQ",
        "_rabbitmq",
        "rabbitmq",
        "an exchange, with the topic as routing key; `/queues/NAME`",
        "a queue",
        0.0,
        "as long as its connection lives",
        rabbitmq.MOST_BYTES,
    ),
    (
        "NATS JetStream",
        "_nats",
        "nats",
        "a subject",
        "`STREAM/CONSUMER`",
        nats.DEDUPE,
        "the consumer's `ack_wait`",
        0,
    ),
    (
        "Redis Streams",
        "_redis_streams",
        "redis",
        "a stream",
        "`STREAM/GROUP`",
        0.0,
        f"`lease=` ({redis_streams.LEASE:g} s)",
        redis_streams.MOST_BYTES,
    ),
    ("memory", "_memory", "", "any name", "the same name", memory.DEDUPE, f"{memory.LEASE:g} s", memory.MOST_BYTES),
)
DEFAULTS = {"prefetch": rabbitmq.PREFETCH, "lease": redis_streams.LEASE}


def brokers(_: str) -> list[str]:
    head = ("broker", "URL", "extra", "options", "publish to", "receive from", "drops a key again", "held for", "body")
    return table(head, [_row(*kind) for kind in KINDS])


def _row(
    name: str, opener: str, extra: str, to: str, source: str, dedupe: float, held: str, most: int
) -> tuple[str, ...]:
    schemes = [scheme for scheme, opens in BROKERS.items() if opens.__name__ == opener]
    options = [f"`{option}=` ({DEFAULTS[option]:g})" for scheme in schemes for option in OPTIONS.get(scheme, ())]
    return (
        name,
        " ".join(code(f"{scheme}://{'name' if scheme == 'memory' else '…'}") for scheme in schemes),
        f"`[{extra}]`" if extra else "none",
        "; ".join(options),
        to,
        source,
        f"within {dedupe:g} s" if dedupe else "no",
        held,
        f"{most // 1024 // 1024} MiB" if most else "the server's `max_payload`",
    )
