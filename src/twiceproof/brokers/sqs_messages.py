"""Messages as SQS takes them: text, ten attributes, ids of a narrow alphabet, batches of ten."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from .base import OutgoingMessage, QueueDelivery, Refused
from .publishing import native_id

__all__ = ["FIFO", "MOST_BYTES", "SYSTEM", "batches", "copied", "delivery_of", "entry_of"]

MOST_BYTES = 1024 * 1024  # of a message with its attributes, and of a batch
MOST_ENTRIES = 10  # of a batch
FIFO = ".fifo"
ID = re.compile(r"[!-~]{1,128}")  # what fits as message group and as deduplication id
NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # characters that XML has not
KEY, CONTENT_TYPE, HEADERS, ENCODING = "message-id", "content-type", "headers", "body-encoding"
EMPTY = "empty"  # SQS takes no empty body
SYSTEM = ["ApproximateReceiveCount", "MessageGroupId", "MessageDeduplicationId", "SequenceNumber"]


# -- publishing ----------------------------------------------------------------------------------


def entry_of(at: int, message: OutgoingMessage, *, fifo: bool) -> dict[str, Any] | Refused:
    """Return an entry of a batch. SQS takes ten attributes, so all headers become one: JSON, in ASCII."""
    body, encoding = _encoded(message.body)
    values = {KEY: native_id(message.key), CONTENT_TYPE: message.content_type, ENCODING: encoding}
    values[HEADERS] = json.dumps(dict(message.headers)) if message.headers else ""
    values = {name: value for name, value in values.items() if value}
    if NOT_IN_XML.search(values[KEY] + message.content_type):
        return Refused("Its key or content type has characters that SQS does not take; remove them.", final=True)
    size = len(body.encode()) + sum(len(f"{name}String{value}".encode()) for name, value in values.items())
    if size > MOST_BYTES:
        text = f"With its attributes it has {size:,} bytes and SQS takes {MOST_BYTES:,}; send a reference instead."
        return Refused(text, final=True)
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}
    ids = {"MessageGroupId": message.order or message.key, "MessageDeduplicationId": message.key} if fifo else {}
    entry = {"Id": str(at), "MessageBody": body, "MessageAttributes": attributes}
    return {**entry, **{name: _as_id(key) for name, key in ids.items()}}


def batches(entries: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Split into batches of at most ten entries, and no more bytes than SQS takes in one request."""
    batch: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        more = len(json.dumps(entry, ensure_ascii=False).encode())
        if batch and (len(batch) == MOST_ENTRIES or size + more > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        yield batch


def _encoded(body: bytes) -> tuple[str, str]:
    """The body as text if SQS accepts it, otherwise in Base64, which an attribute says."""
    with contextlib.suppress(UnicodeDecodeError):
        text = body.decode()
        if text and not NOT_IN_XML.search(text):
            return text, ""
    return (base64.b64encode(body).decode(), "base64") if body else (EMPTY, EMPTY)


def _as_id(key: str) -> str:
    return key if ID.fullmatch(key) else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


# -- receiving -----------------------------------------------------------------------------------


def delivery_of(place: str, message: dict[str, Any], tag: object, until: float) -> QueueDelivery:
    system = message.get("Attributes", {})
    values = {name.lower(): str(one.get("StringValue", "")) for name, one in _attributes(message)}
    headers = {**values, **_headers(values.get(HEADERS, ""))}
    return QueueDelivery(
        place=place,
        body=_decoded(message["Body"], values.get(ENCODING, "")),
        headers={name: value for name, value in headers.items() if name not in (HEADERS, ENCODING)},
        tag=tag,
        key=values.get(KEY) or headers.get("ce-id", "") or system.get("MessageDeduplicationId", ""),
        sequence=int(system["SequenceNumber"]) if "SequenceNumber" in system else None,
        partition=system.get("MessageGroupId", "") if "SequenceNumber" in system else "",
        times=int(system["ApproximateReceiveCount"]) if "ApproximateReceiveCount" in system else None,
        until=until,
        content_type=values.get(CONTENT_TYPE, ""),
    )


def copied(message: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a copy of a delivery: the same body, attributes, group and id."""
    system = message.get("Attributes", {})
    ids = {name: system[name] for name in ("MessageGroupId", "MessageDeduplicationId") if name in system}
    kinds = ("DataType", "StringValue", "BinaryValue")
    attributes = {name: {kind: one[kind] for kind in kinds if kind in one} for name, one in _attributes(message)}
    return {"MessageBody": message["Body"], "MessageAttributes": attributes, **ids}


def _attributes(message: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from message.get("MessageAttributes", {}).items()


def _decoded(body: str, encoding: str) -> bytes:
    """The body as it was sent; unchanged if another sender uses the attribute of that name differently."""
    if encoding == "base64":
        with contextlib.suppress(ValueError):
            return base64.b64decode(body, validate=True)
    return b"" if encoding == body == EMPTY else body.encode()


def _headers(encoded: str) -> dict[str, str]:
    with contextlib.suppress(msgspec.DecodeError):  # else another sender's attribute of that name
        headers = msgspec.json.decode(encoded, type=dict[str, str])
        return {name.lower(): value for name, value in headers.items()}
    return {}
