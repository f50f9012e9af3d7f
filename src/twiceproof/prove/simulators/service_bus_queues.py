"""Queues of the simulator of Azure Service Bus: their settings, their messages, and what they refuse."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

from msgspec import Struct

from .amqp import Described, Symbol, Timestamp, UInt, ULong, encoded, sections
from .amqp_connection import AmqpLink, AmqpRefusal

__all__ = [
    "ANNOTATIONS",
    "APPLICATION",
    "DATA",
    "MESSAGE_ID",
    "PROPERTIES",
    "SESSION_FILTER",
    "VALUE",
    "SimulatedMessage",
    "SimulatedQueue",
    "message_of",
    "message_refusal",
    "payload_of",
    "session_of",
    "settings_entry",
]

SESSION_FILTER = "com.microsoft:session-filter"
HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, VALUE = 0x70, 0x72, 0x73, 0x74, 0x75, 0x77
MESSAGE_ID, GROUP_ID = 0, 10  # positions in the properties


class SimulatedMessage(Struct, eq=False):
    sequence: int
    payload: list[bytes]  # its sections, as they came, without header and annotations
    annotations: dict[Any, Any]
    message_id: str = ""
    session: str = ""
    partition: str = ""
    deliveries: int = 0  # earlier ones
    lock: bytes = b""
    holder: Any = None  # the link that it was delivered on
    expiry: Any = None


class SimulatedQueue:
    """A queue or a subscription, with the settings that the service has for it."""

    def __init__(
        self,
        name: str,
        *,
        lock_seconds: float = 60.0,
        dedupe_seconds: float = 0.0,
        max_deliveries: int = 10,
        keep_seconds: float = 14 * 86_400.0,
        sessions: bool = False,
        partitioned: bool = False,
        max_bytes: int = 1024 * 1024,
    ) -> None:
        self.name = name
        self.lock_seconds, self.dedupe_seconds, self.keep_seconds = lock_seconds, dedupe_seconds, keep_seconds
        self.max_deliveries, self.max_bytes = max_deliveries, max_bytes
        self.sessions, self.partitioned = sessions, partitioned
        self.ready: list[SimulatedMessage] = []  # by sequence
        self.locked: dict[bytes, SimulatedMessage] = {}
        self.receivers: list[AmqpLink] = []
        self.taken_sessions: dict[str, AmqpLink] = {}
        self.seen: dict[str, float] = {}
        self.dead: SimulatedQueue | None = None
        self._numbers = 0

    def store(self, message: SimulatedMessage) -> None:
        if not message.sequence:
            self._numbers += 1
            message.sequence = self._numbers
        bisect.insort(self.ready, message, key=lambda one: one.sequence)

    def knows(self, message_id: str) -> bool:
        """Whether it was seen within the window; from now on it was."""
        now = time.monotonic()
        known = bool(self.dedupe_seconds) and self.seen.get(message_id, now - 1e9) > now - self.dedupe_seconds
        if message_id and not known:
            self.seen[message_id] = now
        return known

    def next_for(self, link: AmqpLink) -> SimulatedMessage | None:
        session = session_of(link)
        found = (at for at, one in enumerate(self.ready) if not self.sessions or one.session == session)
        at = next(found, None)
        return None if at is None else self.ready.pop(at)

    def free_session(self) -> str | None:
        return next((one.session for one in self.ready if one.session not in self.taken_sessions), None)


# -- messages ------------------------------------------------------------------------------------


def message_refusal(queue: SimulatedQueue, messages: list[bytes], size: int) -> AmqpRefusal | None:
    """Return why a batch is refused: it is stored whole or not at all."""
    if size > queue.max_bytes:
        return AmqpRefusal("amqp:link:message-size-exceeded", f"It is larger than {queue.max_bytes} bytes.")
    read = [message_of(one) for one in messages]
    if queue.sessions and not all(message.session for message in read):
        return AmqpRefusal("amqp:not-allowed", "The SessionId was not set on a message.")
    if queue.partitioned and len({message.partition for message in read}) > 1:
        return AmqpRefusal("amqp:not-allowed", "Messages of a batch must have the same partition key.")
    return None


def message_of(payload: bytes) -> SimulatedMessage:
    found = list(sections(payload))
    values = {code: value for code, value, _ in found}
    properties = [*values.get(PROPERTIES, []), *[None] * 13]
    annotations = values.get(ANNOTATIONS, {})
    session = str(properties[GROUP_ID] or "")
    return SimulatedMessage(
        sequence=0,
        payload=[raw for code, _, raw in found if code not in (HEADER, ANNOTATIONS)],
        annotations=annotations,
        message_id=str(properties[MESSAGE_ID] or ""),
        session=session,
        partition=str(annotations.get("x-opt-partition-key") or session),
    )


def payload_of(message: SimulatedMessage, until: float) -> bytes:
    return b"".join(_delivered(message, until))


def _delivered(message: SimulatedMessage, until: float) -> Iterator[bytes]:
    own = {
        Symbol("x-opt-sequence-number"): message.sequence,
        Symbol("x-opt-enqueued-time"): Timestamp(time.time() * 1000),
        Symbol("x-opt-locked-until"): Timestamp(until * 1000),
    }
    yield encoded(Described(ULong(HEADER), [True, None, None, False, UInt(message.deliveries)]))
    yield encoded(Described(ULong(ANNOTATIONS), {**message.annotations, **own}))
    yield from message.payload


def session_of(link: AmqpLink) -> str:
    return str(link.filters.get(SESSION_FILTER, ""))


# -- settings over HTTP --------------------------------------------------------------------------


def settings_entry(name: str, queue: SimulatedQueue | None, topic: Sequence[SimulatedQueue] | None) -> str:
    """An Atom entry; an empty feed, as the service has it, for what does not exist."""
    if topic is not None:
        return _entry("Topic", topic[0]) if topic else ""
    if queue is None:
        return '<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Publicly Listed Services</title></feed>'
    return _entry("Subscription" if "/subscriptions/" in name else "Queue", queue)


def _counts(queue: SimulatedQueue) -> str:
    namespace = 'xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus"'
    count = f"<d2p1:ActiveMessageCount>{len(queue.ready) + len(queue.locked)}</d2p1:ActiveMessageCount>"
    return f"<CountDetails {namespace}>{count}</CountDetails>"


def _entry(kind: str, queue: SimulatedQueue) -> str:
    values = {
        "LockDuration": f"PT{queue.lock_seconds:g}S",
        "RequiresDuplicateDetection": str(bool(queue.dedupe_seconds)).lower(),
        "RequiresSession": str(queue.sessions).lower(),
        "DefaultMessageTimeToLive": f"PT{queue.keep_seconds:.0f}S",
        "DuplicateDetectionHistoryTimeWindow": f"PT{queue.dedupe_seconds or 600:g}S",
        "MaxDeliveryCount": str(queue.max_deliveries),
        "EnablePartitioning": str(queue.partitioned).lower(),
    }
    inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in values.items()) + _counts(queue)
    description = 'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
    content = f'<content type="application/xml"><{kind}Description {description}>{inner}</{kind}Description></content>'
    return (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><title type="text">{escape(queue.name)}</title>{content}</entry>'
    )
