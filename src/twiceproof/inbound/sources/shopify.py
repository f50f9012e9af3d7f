"""Shopify: HMAC-SHA256 over the body. With two subscriptions, one event has one event id and two webhook ids."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from ...errors import Misuse
from ..source import Envelope, Event, Poison, Reading
from .parsing import made_up_id, named, object_of
from .signed import UNSIGNED, Signed, Signer, mac, raw

__all__ = ["Shopify"]


By = Literal["webhook-id", "event-id"]
NAMES = ("webhook-id", "event-id", "handle", "topic")

SIGNATURES = ("x-shopify-hmac-sha256", "shopify-hmac-sha256")


class Shopify(Signer):
    """`by` selects the id that is claimed. With `event-id`, two subscriptions to one topic count as one.

    Newer events have no webhook id: they are identified by the event id and the subscription's handle.
    """

    name = "shopify"
    retry_window = 4 * 3_600.0  # eight attempts; afterwards the subscription is deleted
    deadline = 5.0
    covered = ("x-shopify-hmac-sha256",)
    needs = tuple(f"{start}shopify-{name}" for name in NAMES for start in ("x-", ""))

    def __init__(self, *, by: By = "webhook-id") -> None:
        if by not in get_args(By):
            raise Misuse(f"by={by!r} is not an id of Shopify's; use one of {', '.join(get_args(By))}.")
        self.by = by

    def signed_part(self, envelope: Envelope) -> Signed | str:
        given = [text for text in map(envelope.header, SIGNATURES) if text]
        return Signed(given, envelope.body) if given else UNSIGNED

    def sign(self, secret: str, message: bytes) -> str:
        return mac(raw(secret), message, encoding="base64")

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope)
        if isinstance(payload, Poison):
            return payload
        name = self._id_of(envelope)
        if isinstance(name, Poison):
            return name
        return [Event(name, payload, _header(envelope, "topic"), delivery=_header(envelope, "webhook-id"))]

    def _id_of(self, envelope: Envelope) -> str | Poison:
        own, event = _header(envelope, self.by), _header(envelope, "event-id")
        if own or not event:
            return named(own)
        handle = _header(envelope, "handle")
        return named(event, handle) if handle else named(event)

    def example(self, payload: Any = None) -> bytes:
        return msgspec.json.encode({"id": 820982911946154508, "name": "#9999"} if payload is None else payload)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        headers = {
            "content-type": "application/json",
            "x-shopify-topic": "orders/create",
            "x-shopify-webhook-id": made_up_id(body),
            "x-shopify-event-id": made_up_id(body, "event-"),
            "x-shopify-hmac-sha256": self.sign(secret, body),
        }
        return Envelope(self.name, body, headers, received_at=now)


def _header(envelope: Envelope, name: str) -> str:
    """Newer events leave out the X- prefix."""
    return envelope.header(f"x-shopify-{name}") or envelope.header(f"shopify-{name}")
