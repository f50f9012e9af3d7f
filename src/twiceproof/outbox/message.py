"""Message: what is sent, its record in the ledger, and how it looks to a broker.

A message without an order key is one record, due in its target's queue. Its space is its own
(`tenant/~out/target/key`), or that of the run that sent it. A message with an order key is stored in its lane's space:
see `lanes`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from ..brokers.base import OutgoingMessage
from ..claims.claim import body_of
from ..claims.results import json_of
from ..errors import CannotOpen, Misuse, PayloadMismatch
from ..keys import validate_key
from ..records import SELF, Address, Insert, Record, record_kind

__all__ = [
    "DROPPED",
    "JSON",
    "MESSAGE_KIND",
    "MOST_BODY",
    "PARKED",
    "PENDING",
    "PUBLISHING",
    "SENT",
    "STATES",
    "Message",
    "Payload",
    "PublishAttempt",
    "checked_headers",
    "checked_topic",
    "encode_body",
    "insert_message",
    "message_address",
    "message_of",
    "outgoing",
    "queue_of_target",
    "refuse_other_payload",
    "tenant_of",
]


MESSAGE_KIND = record_kind("message", expires=True)
# To be published; handed to a broker that may only be asked once; confirmed; waits for review; given up by a person.
PENDING, PUBLISHING, SENT, PARKED, DROPPED = "pending", "publishing", "sent", "parked", "dropped"
STATES = (PENDING, PUBLISHING, SENT, PARKED, DROPPED)
OUT = "~out"  # no operation: names have no tilde
MOST_BODY = 256 * 1024
JSON = "application/json"
DEFAULT_TENANT = "default"


class PublishAttempt(Struct, frozen=True, gc=False, array_like=True):
    """An attempt at publishing that ended without a confirmation: `refused`, `unconfirmed` or `interrupted`."""

    at: float
    outcome: str
    why: str


class Message(Struct, frozen=True, omit_defaults=True, gc=False):
    """The body of a message's record. State and times of creation are the record's own.

    `body` is JSON text, or base64 with another content type. It is dropped when the message is sent; `digest` stays.
    """

    topic: str
    key: str  # the delivery key: the same at every attempt, and what receivers deduplicate by
    target: str
    place: str
    digest: str  # of everything that must be equal when the key is sent again
    body: str = ""
    content_type: str = JSON
    order: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    source: str = ""
    run: str = ""  # the run that sent it
    on_unknown: str = "resend"
    on_parked: str = "hold"
    starts: int = 0  # attempts at publishing that ended without a confirmation
    first_at: float | None = None  # the store's time at the first of them
    why: str = ""  # what the last one ended with
    attempts: tuple[PublishAttempt, ...] = ()  # the latest of them, oldest first
    receipt: str = ""
    sent_at: float | None = None
    duplicate: bool = False  # the broker had the message already
    by: str = ""  # who resent or dropped it
    note: str = ""


class Payload(Struct, frozen=True):
    """An encoded body."""

    text: str
    content_type: str
    digest: str
    size: int


_decode = msgspec.json.Decoder(Message).decode
_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode_numbers = msgspec.json.Decoder(float_hook=lambda text: _plain_number(text)).decode


def message_of(record: Record) -> Message:
    try:
        return _decode(record.body)
    except msgspec.DecodeError:
        raise CannotOpen(
            f"The message in {record.at.space!r} cannot be read; set TWICEPROOF_KEYS, or restore it from a backup.",
            at=record.at,
        ) from None


# -- making --------------------------------------------------------------------------------------


def encode_body(body: Any, content_type: str | None) -> Payload:
    """Encode a body. Bytes need a content type; everything else becomes JSON."""
    if isinstance(body, bytes | bytearray | memoryview):
        if not content_type:
            raise Misuse('A body of bytes needs a content type; write content_type="application/octet-stream".')
        raw = bytes(body)
        return Payload(b64encode(raw).decode(), content_type, sha256(raw).hexdigest(), len(raw))
    if content_type not in (None, JSON):
        raise Misuse(f"content_type={content_type!r} is for a body of bytes; encode the body, or leave it out.")
    try:
        encoded = json_of(body)
    except ValueError as error:
        raise Misuse(f"The body of a message has no JSON form ({error}); send plain data, or bytes.") from None
    return Payload(encoded.decode(), JSON, sha256(_plain_json(encoded)).hexdigest(), len(encoded))


def _plain_json(encoded: bytes) -> bytes:
    """Return a JSON value in the same normal form as `twiceproof_send` in PostgreSQL:

    two bodies that differ only in the order of their members or in how a number is written are the same body.
    """
    return _sorted(_decode_numbers(encoded))


def _plain_number(text: str) -> Raw:
    digits = f"{Decimal(text):f}"
    plain = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return Raw(b"0" if plain == "-0" else plain.encode())


def message_address(tenant: str, target: str, key: str) -> Address:
    return Address(f"{tenant}/{OUT}/{target}/{key}", MESSAGE_KIND, SELF)


def queue_of_target(tenant: str, target: str) -> str:
    """Return the queue in which a tenant's messages to a target, and their lanes, are due."""
    return f"{tenant}/{OUT}/{target}"


def tenant_of(at: Address) -> str:
    return at.space.partition("/")[0]


def insert_message(at: Address, message: Message, delay: float) -> Insert:
    queue = queue_of_target(tenant_of(at), message.target)
    return Insert(at, body_of(message), PENDING, queue=queue, due_in=delay)


def refuse_other_payload(found: Message, message: Message) -> None:
    """Raise PayloadMismatch unless the stored message has the same content."""
    if found.digest == message.digest and found.topic == message.topic and found.order == message.order:
        return
    raise PayloadMismatch(
        f"A message with the key {message.key!r} was sent to {message.target} before, and this one differs; use "
        "another key, or send what was sent the first time.",
        key=message.key,
        found=found.digest,
        asked=message.digest,
        run=found.run,
    )


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the user's headers with names in lower case. Names that Twiceproof sets itself are refused."""
    checked: dict[str, str] = {}
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise Misuse(f"The header {name!r} is not text; write names and values as text.")
        lower = name.lower()
        if lower.startswith("ce-") or not lower.replace("-", "").replace("_", "").isalnum() or not lower.isascii():
            raise Misuse(f"{name!r} cannot be a header of a message; use letters, digits and dashes, and not ce-….")
        if not value.isprintable():
            raise Misuse(f"The header {name!r} holds a control character; encode its value.")
        checked[lower] = value
    return checked


def checked_topic(topic: str) -> str:
    valid = validate_key(topic)
    if any(letter in valid for letter in " */#>"):
        raise Misuse(f"{topic!r} cannot be a topic; write it like orders.paid.")
    return valid


# -- publishing ----------------------------------------------------------------------------------


def outgoing(record: Record, message: Message) -> OutgoingMessage:
    """Return the message as a broker gets it, with CloudEvents attributes as headers; the same at every attempt."""
    return OutgoingMessage(
        place=message.place,
        key=message.key,
        body=_raw_body(record, message),
        topic=message.topic,
        order=_order_at_broker(record, message),
        headers={**message.headers, **_cloud_event(record, message)},
        content_type=message.content_type,
    )


def _order_at_broker(record: Record, message: Message) -> str:
    """Return the order key with the tenant in it: two tenants may use the same one, and must not block each other."""
    tenant = tenant_of(record.at)
    return message.order if tenant == DEFAULT_TENANT or not message.order else f"{tenant}/{message.order}"


def _raw_body(record: Record, message: Message) -> bytes:
    if message.content_type == JSON:
        return message.body.encode()
    try:
        return b64decode(message.body, validate=True)
    except binascii.Error:
        raise CannotOpen(
            f"The body of {message.key!r} cannot be read; restore it from a backup.", at=record.at
        ) from None


def _cloud_event(record: Record, message: Message) -> dict[str, str]:
    at = datetime.fromtimestamp(record.created_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = {
        "ce-specversion": "1.0",
        "ce-id": message.key,
        "ce-source": message.source,
        "ce-type": message.topic,
        "ce-time": at,
    }
    return event | ({"ce-subject": message.order} if message.order else {})
