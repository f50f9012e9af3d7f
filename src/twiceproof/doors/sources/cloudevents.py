"""CloudEvents 1.0 over HTTP: one in the body (structured), many (batch), or its attributes in headers (binary)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection
from typing import Any

import msgspec

from ..envelope import Envelope
from ..source import Event, Handshake, Poison, Reading
from .cloudevents_attributes import flaw_in, header_value
from .consent import consent
from .event_id import made_up_id, named, readable, text_at
from .json_body import json_of, media_type, parse_json
from .shared_secret import SharedSecret

__all__ = ["CloudEvents"]

ONE, MANY = "application/cloudevents+json", "application/cloudevents-batch+json"
STRUCTURED = "application/cloudevents"
PREFIX = "ce-"
EVENTS_OWN = {"data", "data_base64", "specversion", "type", "source", "id"}
HEADERLESS = ("data", "datacontenttype")
MOST_EVENTS = 5_000
NOT_TEXT = object()


class CloudEvents(SharedSecret):
    """A flow is given the whole event, `source`, `type`, `data` and all, however it came."""

    name = "cloudevents"
    horizon = 86_400.0
    deadline = 30.0
    needs: tuple[str, ...] = (PREFIX,)
    tolerated: tuple[str, ...] = ()  # attributes that its sender writes in a way of its own

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
            return self._events_of(json_of(envelope))
        if kind == ONE:
            return self._events_of([json_of(envelope)])
        if kind.startswith(STRUCTURED):
            return Poison(f"its format is {kind[:80]!r}; have the sender use {ONE}")
        if not envelope.header(PREFIX + "specversion"):
            return Poison(f"its content type is {kind[:80] or 'missing'!r} and it has no ce- headers: no CloudEvent")
        return self._events_of([_from_headers(envelope, kind)])

    def _events_of(self, items: Any) -> Reading:
        if isinstance(items, Poison):
            return items
        if not isinstance(items, list) or len(items) > MOST_EVENTS:
            return Poison(f"its body is no array of at most {MOST_EVENTS} events")
        return readable([self._event_of(item) for item in items])

    def _event_of(self, item: Any) -> Event | Poison:
        if isinstance(item, Poison):
            return item
        flaw = flaw_in(item, self.tolerated) if isinstance(item, dict) else Poison("it is no CloudEvent, but no object")
        if flaw is not None:
            return flaw
        name = named(text_at(item, "source"), text_at(item, "id"))
        return name if isinstance(name, Poison) else Event(name, item, text_at(item, "type"))

    def example(self, payload: Any = None) -> bytes:
        given = {"data": {"order": 1}} if payload is None else payload
        if isinstance(given, dict) and not given.keys() & EVENTS_OWN:  # then it is what the event is about
            given = {"data": given}
        more = {"specversion": "1.0", "id": made_up_id(given), "source": "/shop", "type": "order.created"}
        return msgspec.json.encode({**more, **given} if isinstance(given, dict) else given)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        kind = MANY if body.startswith(b"[") else ONE
        return self.enclosed(body, {"content-type": kind}, secret, now)


def _from_headers(envelope: Envelope, kind: str) -> dict[str, Any] | Poison:
    """The structured form of a binary one."""
    event: dict[str, Any] = {}
    for header, text in envelope.headers.items():
        if not header.startswith(PREFIX):
            continue
        name, value = header.removeprefix(PREFIX), header_value(text)
        if value is None:
            return Poison(f"its header {header[:40]} cannot be decoded: its percent signs or quotes are not right")
        if name in HEADERLESS:
            return Poison(f"its header {header[:40]} says what is said by Content-Type and by the body")
        event[name] = value
    if kind:
        event["datacontenttype"] = envelope.header("content-type")
    if not envelope.body:
        return event
    data = parse_json(envelope.body) if kind.endswith(("/json", "+json")) else _text(kind, envelope.body)
    if data is NOT_TEXT:
        return {**event, "data_base64": b64encode(envelope.body).decode()}
    return data if isinstance(data, Poison) else {**event, "data": data}


def _text(kind: str, body: bytes) -> Any:
    try:
        return body.decode() if kind.startswith("text/") else NOT_TEXT
    except UnicodeDecodeError:
        return NOT_TEXT
