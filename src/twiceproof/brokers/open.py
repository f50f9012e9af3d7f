"""Opens a broker by URL. A client is imported when it is named, and connects at the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from ..clock import Clock, system_clock
from ..errors import Misuse
from .base import Broker

__all__ = ["BROKERS", "open_broker"]

EXAMPLE = "amqp://user:password@host:5672/vhost"
Number = tuple[type[int] | type[float], float, float]  # type, minimum and maximum
OPTIONS: dict[str, dict[str, Number]] = {
    "amqp": {"prefetch": (int, 1, 65_535)},
    "kafka": {"prefetch": (int, 1, 100_000)},
    "redis+stream": {"lease": (float, 1, 86_400)},
    "servicebus": {"dedupe": (float, 0, 604_800), "sessions": (int, 1, 256), "management": (int, 1, 65_535)},
    "sqs": {"lease": (int, 1, 43_200)},
}


def open_broker(url: str, *, clock: Clock = system_clock) -> Broker:
    """`amqp://…`, `amqps://…`, `nats://…`, `tls://…`, `redis+stream://…`, `rediss+stream://…`, `sqs://region`,
    `kafka://…`, `kafkas://…`, `servicebus://namespace`, `memory://name`."""
    parts = _split(url)
    opener = BROKERS.get(parts.scheme)
    if opener is None:
        raise Misuse(f"{_described(url)}; use one of {', '.join(f'{name}://' for name in sorted(BROKERS))}.")
    if parts.scheme != "memory" and not parts.hostname:
        raise Misuse(f"The broker's URL names no host; write it like {EXAMPLE}.")
    return opener(parts, clock)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number
    except ValueError:  # its text may quote the password
        raise Misuse(
            f"The broker's URL cannot be read; write it like {EXAMPLE}, with special characters percent-encoded."
        ) from None
    return parts


def _described(url: str) -> str:
    """Describe the URL by its scheme only: the rest may contain a password."""
    scheme, found, _ = url.partition("://")
    return f"{scheme[:40]!r} is not a broker that twiceproof knows" if found else "A broker is named by a URL"


def _memory(parts: SplitResult, clock: Clock) -> Broker:
    from .memory import MemoryBroker

    return MemoryBroker.named(parts.netloc, clock)


def _rabbitmq(parts: SplitResult, clock: Clock) -> Broker:
    try:
        from .rabbitmq import RabbitBroker
    except ImportError as error:
        raise _missing("rabbitmq", error) from error
    url, options = _without_options(parts, OPTIONS["amqp"])
    return RabbitBroker(url, clock=clock, **options)


def _nats(parts: SplitResult, clock: Clock) -> Broker:
    try:
        from .nats import NatsBroker
    except ImportError as error:
        raise _missing("nats", error) from error
    url, options = _without_options(parts, {})
    return NatsBroker(url, clock=clock, **options)


def _redis_streams(parts: SplitResult, clock: Clock) -> Broker:
    try:
        from .redis_streams import RedisStreamBroker
    except ImportError as error:
        raise _missing("redis", error) from error
    url, options = _without_options(parts, OPTIONS["redis+stream"])
    return RedisStreamBroker(url, clock=clock, **options)


def _sqs(parts: SplitResult, clock: Clock) -> Broker:
    try:
        from .sqs import SqsBroker
    except ImportError as error:
        raise _missing("sqs", error) from error
    url, options = _without_options(parts, OPTIONS["sqs"])
    return SqsBroker(url, clock=clock, **options)


def _kafka(parts: SplitResult, clock: Clock) -> Broker:
    try:
        from .kafka import KafkaBroker
    except ImportError as error:
        raise _missing("kafka", error) from error
    url, options = _without_options(parts, OPTIONS["kafka"])
    return KafkaBroker(url, clock=clock, **options)


def _service_bus(parts: SplitResult, clock: Clock) -> Broker:
    try:
        from .service_bus import ServiceBusBroker
    except ImportError as error:
        raise _missing("servicebus", error) from error
    if not parts.username or not parts.password:
        text = "The URL of Azure Service Bus names no policy and key"
        raise Misuse(f"{text}; write servicebus://POLICY:KEY@NAMESPACE.servicebus.windows.net, percent-encoded.")
    url, options = _without_options(parts, OPTIONS["servicebus"])
    return ServiceBusBroker(url, clock=clock, **options)


def _missing(extra: str, error: ImportError) -> Misuse:
    return Misuse(f"This broker needs {error.name}, which is not installed; run: pip install 'twiceproof[{extra}]'")


def _without_options(parts: SplitResult, legal: dict[str, Number]) -> tuple[str, dict[str, Any]]:
    """Return the URL without its query, and the query as checked numbers: clients would silently ignore options they do
    not know.
    """
    options: dict[str, Any] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in legal:
            known = f"this broker has: {', '.join(legal)}" if legal else "this broker has none"
            raise Misuse(f"In the broker's URL, {name[:40]}= is not known; {known}.")
        options[name] = _number(name, text, *legal[name])
    return urlunsplit(parts._replace(query="", fragment="")), options


def _number(name: str, text: str, kind: type[int] | type[float], least: float, most: float) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = kind(-1)
    if not least <= value <= most:
        raise Misuse(
            f"In the broker's URL, {name}={text[:40]!r} is not valid; give a number from {least:g} to {most:g}."
        )
    return value


BROKERS: dict[str, Callable[[SplitResult, Clock], Broker]] = {
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
    "kafka": _kafka,
    "kafkas": _kafka,
    "memory": _memory,
    "nats": _nats,
    "tls": _nats,
    "redis+stream": _redis_streams,
    "rediss+stream": _redis_streams,
    "servicebus": _service_bus,
    "servicebus+amqp": _service_bus,
    "sqs": _sqs,
    "sqs+http": _sqs,
}
