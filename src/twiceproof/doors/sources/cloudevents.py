"""CloudEvents 1.0 over HTTP: one in the body (structured), many (batch), or its attributes in headers (binary)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection
from typing import Any
from urllib.parse import unquote

import msgspec

from ..envelope import Envelope
from ..source import Event, Handshake, Poison, Reading
from .consent import consent
from .event_id import made_up_id, named, readable, text_at
from .json_body import is_json, json_of, media_type, parse_json
from .shared_secret import SharedSecret

__all__ = ["CloudEvents"]

ONE, MANY = "application/cloudevents+json", "application/cloudevents-batch+json"
PREFIX = "ce-"
MOST_EVENTS = 5_000
NOT_TEXT = object()


class CloudEvents(SharedSecret):
    """A flow is given the whole event, `source`, `type`, `data` and all, however it came."""

    name = "cloudevents"
    horizon = 86_400.0
    deadline = 30.0
    needs: tuple[str, ...] = (PREFIX,)

    def __init__(
        self, *, parameter: str = "code", header: str = "", origins: Collection[str] = (), horizon: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__(parameter=parameter, header=header)
        self.origins = frozenset(origins)
        self.horizon = horizon or self.horizon

    def greet(self, envelope: Envelope) -> Handshake | None:
        return consent(envelope, self.origins)

    def read(self, envelope: Envelope) -> Reading:
        kind = media_type(envelope)
        if kind == MANY:
            return _events_of(json_of(envelope))
        if kind == ONE:
            return _events_of([json_of(envelope)])
        if not envelope.header(PREFIX + "specversion"):
            return Poison(f"its content type is {kind[:80] or 'missing'!r} and it has no ce- headers: no CloudEvent")
        return _events_of([_from_headers(envelope, kind)])

    def example(self, payload: Any = None) -> bytes:
        given = {"data": {"order": 1}} if payload is None else payload
        more = {"specversion": "1.0", "id": made_up_id(given), "source": "/shop", "type": "order.created"}
        return msgspec.json.encode({**more, **given} if isinstance(given, dict) else given)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        kind = MANY if body.startswith(b"[") else ONE
        return self.enclosed(body, {"content-type": kind}, secret, now)


def _events_of(items: Any) -> Reading:
    if isinstance(items, Poison):
        return items
    if not isinstance(items, list) or len(items) > MOST_EVENTS:
        return Poison(f"its body is no array of at most {MOST_EVENTS} events")
    return readable([_event_of(item) for item in items])


def _event_of(item: Any) -> Event | Poison:
    if isinstance(item, Poison):
        return item
    if not isinstance(item, dict) or item.get("specversion") != "1.0":
        return Poison("it is no CloudEvent of version 1.0")
    kind = text_at(item, "type")
    name = named(text_at(item, "source"), text_at(item, "id")) if kind else Poison("its event has no type")
    return name if isinstance(name, Poison) else Event(name, item, kind)


def _from_headers(envelope: Envelope, kind: str) -> dict[str, Any] | Poison:
    """The structured form of a binary one."""
    # Names are its own to choose; values are percent-encoded, because headers are not UTF-8.
    event: dict[str, Any] = {
        name.removeprefix(PREFIX): unquote(value) for name, value in envelope.headers.items() if name.startswith(PREFIX)
    }
    if kind:
        event["datacontenttype"] = envelope.header("content-type")
    if not envelope.body:
        return event
    data = parse_json(envelope.body) if is_json(kind) else _text(kind, envelope.body)
    if data is NOT_TEXT:
        return {**event, "data_base64": b64encode(envelope.body).decode()}
    return data if isinstance(data, Poison) else {**event, "data": data}


def _text(kind: str, body: bytes) -> Any:
    try:
        return body.decode() if kind.startswith("text/") else NOT_TEXT
    except UnicodeDecodeError:
        return NOT_TEXT
