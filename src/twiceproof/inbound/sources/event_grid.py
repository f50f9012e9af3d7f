"""Azure Event Grid: arrays of events in its own schema, or CloudEvents; one status for the whole array."""

from __future__ import annotations

from typing import Any

import msgspec

from ..reply import Reply, json_reply
from ..source import Envelope, Event, Handshake, Poison, Reading
from .cloudevents import MOST_EVENTS, CloudEvents
from .parsing import json_of, made_up_id, media_type, named, readable, text_at

__all__ = ["EventGrid"]


TYPE_HEADER = "aeg-event-type"
VALIDATION = "Microsoft.EventGrid.SubscriptionValidationEvent"


class EventGrid(CloudEvents):
    """Subscribe with the secret in the URL: https://…/hooks/event_grid?code=…"""

    name = "event_grid"
    retry_window = 86_400.0  # up to 30 attempts; 400 and 413 are final, only 200 to 204 is success
    deadline = 30.0
    largest = 1024 * 1024 + 64 * 1024
    needs = (TYPE_HEADER, *CloudEvents.needs)
    tolerated = ("dataschema",)  # Azure writes "#", which is not a URI

    def read(self, envelope: Envelope) -> Reading:
        if media_type(envelope) != "application/json" or envelope.header("ce-specversion"):
            return super().read(envelope)
        items = json_of(envelope)
        if isinstance(items, Poison):
            return items
        if not isinstance(items, list) or len(items) > MOST_EVENTS:
            return Poison(f"its body is not an array of at most {MOST_EVENTS} events")
        kind = envelope.header(TYPE_HEADER)
        if kind == "SubscriptionValidation":
            return _validated(items)
        if kind == "SubscriptionDeletion":
            return Handshake(Reply(200))
        return readable([_event_of(item, envelope.header("aeg-delivery-count")) for item in items])

    def example(self, payload: Any = None) -> bytes:
        given = {"data": {"order": 1}} if payload is None else payload
        items = given if isinstance(given, list) else [given]
        return msgspec.json.encode([_filled_in(item) if isinstance(item, dict) else item for item in items])

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        return self.enclosed(body, {"content-type": "application/json", TYPE_HEADER: "Notification"}, secret, now)


def _filled_in(item: dict[str, Any]) -> dict[str, Any]:
    more = {"id": made_up_id(item), "topic": "/shop", "subject": "orders/1", "eventType": "order.created"}
    return {**more, "eventTime": "2026-01-01T00:00:00Z", "dataVersion": "1", **item}


def _validated(items: list[Any]) -> Handshake | Poison:
    """Return the validation code. Event Grid sends no event before it has received it."""
    validation = next((item for item in items if text_at(item, "eventType") == VALIDATION), None)
    code = text_at(validation, "data", "validationCode")
    return (
        Handshake(json_reply(200, {"validationResponse": code})) if code else Poison("its validation event has no code")
    )


def _event_of(item: Any, attempt: str) -> Event | Poison:
    name = named(text_at(item, "topic"), text_at(item, "id"))
    return name if isinstance(name, Poison) else Event(name, item, text_at(item, "eventType"), attempt=attempt)
