"""Stripe: HMAC-SHA256 over `time.body`; the event's id is in the body."""

from __future__ import annotations

from typing import Any

import msgspec

from ..source import WINDOW, Envelope, Event, Poison, Reading
from .parsing import made_up_id, named, object_of, text_at
from .signed import UNSIGNED, Signed, Signer, moment, raw

__all__ = ["Stripe"]


class Stripe(Signer):
    name = "stripe"
    retry_window = 3 * 86_400.0
    window = WINDOW
    covered = ("stripe-signature",)
    varying = ("pending_webhooks",)  # the number of endpoints that have not replied yet

    def signed_part(self, envelope: Envelope) -> Signed | str:
        parts = [part.partition("=") for part in envelope.header("stripe-signature").split(",")]
        times = [value for name, _, value in parts if name == "t"]
        given = [value for name, _, value in parts if name == "v1"]  # v0 is a test scheme
        if len(times) != 1 or not given:
            return UNSIGNED
        at = moment(times[0])
        return "its time is not a number" if at is None else Signed(given, raw(f"{times[0]}.") + envelope.body, at)

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope)
        if isinstance(payload, Poison):
            return payload
        name = named(payload.get("id"))
        return name if isinstance(name, Poison) else [Event(name, payload, text_at(payload, "type"))]

    def example(self, payload: Any = None) -> bytes:
        given = {"data": {"object": {"id": "ch_1", "amount": 2000}}} if payload is None else payload
        more = {"id": made_up_id(given, "evt_"), "object": "event", "type": "charge.succeeded"}
        return msgspec.json.encode({**more, **given} if isinstance(given, dict) else given)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        signature = f"t={now:.0f},v1={self.sign(secret, raw(f'{now:.0f}.') + body)}"
        headers = {"content-type": "application/json; charset=utf-8", "stripe-signature": signature}
        return Envelope(self.name, body, headers, received_at=now)
