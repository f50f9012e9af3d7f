"""Dataverse (Dynamics 365): no signature and no delivery id; the event id is built from the ids in its body."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from ...keys.canonical import digest
from ..source import Envelope, Event, Poison, Reading
from .parsing import made_up_id, named, object_of, text_at
from .signed import SharedSecret

__all__ = ["Dataverse"]


EXCEEDED = "x-ms-dynamics-msg-size-exceeded"
NIL = str(UUID(int=0))


class Dataverse(SharedSecret):
    """Register the webhook with a WebhookKey (`?code=…`), or with `header=` as an HttpHeader.

    Over 256 KB Dataverse leaves out InputParameters and the images; the payload then has `MessageSizeExceeded: true`,
    and the flow must fetch the row.
    """

    name = "dataverse"
    retry_window = 86_400.0  # one more attempt; but a person can resume the system job
    deadline = 60.0
    needs = (EXCEEDED,)

    def read(self, envelope: Envelope) -> Reading:
        context = object_of(envelope)
        if isinstance(context, Poison):
            return context
        name = _id_of(context)
        if isinstance(name, Poison):
            return name
        if envelope.header(EXCEEDED):
            context = {**context, "MessageSizeExceeded": True}
        kind = f"{text_at(context, 'PrimaryEntityName')}.{text_at(context, 'MessageName')}"
        return [Event(name, context, kind)]

    def example(self, payload: Any = None) -> bytes:
        given = {"InputParameters": []} if payload is None else payload
        if not isinstance(given, dict):
            return msgspec.json.encode(given)
        operation = str(UUID(made_up_id(given)[:32].ljust(32, "0")))
        more = {
            "MessageName": "Update",
            "OperationId": operation,
            "OrganizationId": "5a5b1a3c-0000-4000-8000-000000000001",
            "PrimaryEntityId": "5a5b1a3c-0000-4000-8000-000000000002",
            "PrimaryEntityName": "account",
        }
        return msgspec.json.encode({**more, **given})

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        return self.enclosed(body, {"content-type": "application/json"}, secret, now)


def _id_of(context: dict[str, Any]) -> str | Poison:
    parts = [text_at(context, name) for name in ("OrganizationId", "OperationId", "MessageName", "PrimaryEntityId")]
    if not all(parts):
        return Poison("it is not a Dataverse execution context: its ids are missing")
    step = text_at(context, "OwningExtension", "Id") or "-"
    if parts[1] == NIL:  # a synchronous step has no operation id: all changes of one row would become one event
        return named(parts[0], digest(context), *parts[2:], step)
    return named(*parts, step)
