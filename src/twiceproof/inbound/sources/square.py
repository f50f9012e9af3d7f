"""Square: HMAC-SHA256 over the notification URL and the body."""

from __future__ import annotations

from typing import Any

import msgspec

from ..source import Envelope, Event, Poison, Reading
from .parsing import made_up_id, named, object_of, text_at
from .signed import UNSIGNED, Signed, Signer, mac, raw

__all__ = ["Square"]


SIGNATURE = "x-square-hmacsha256-signature"
SAMPLE_URL = "https://example.com/hooks/square"


class Square(Signer):
    """`url` is the notification URL exactly as registered with Square; behind a proxy this server sees another one."""

    name = "square"
    retry_window = 3 * 86_400.0  # documented as 24 hours, formerly as 72
    covered = (SIGNATURE,)

    def __init__(self, *, url: str = "") -> None:
        self.url = url

    def signed_part(self, envelope: Envelope) -> Signed | str:
        given, url = envelope.header(SIGNATURE), self.url or envelope.url
        if not url:
            return "the URL that Square calls is not known; give url= to the source"
        return Signed([given], raw(url) + envelope.body) if given else UNSIGNED

    def sign(self, secret: str, message: bytes) -> str:
        return mac(raw(secret), message, encoding="base64")

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope)
        if isinstance(payload, Poison):
            return payload
        name = named(payload.get("event_id"))
        if isinstance(name, Poison):
            return name
        return [Event(name, payload, text_at(payload, "type"), attempt=envelope.header("square-retry-number"))]

    def example(self, payload: Any = None) -> bytes:
        given = {"data": {"type": "payment", "id": "pay_1"}} if payload is None else payload
        more = {"merchant_id": "ML1", "type": "payment.created", "event_id": made_up_id(given)}
        return msgspec.json.encode({**more, **given} if isinstance(given, dict) else given)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        url = self.url or SAMPLE_URL
        headers = {"content-type": "application/json", SIGNATURE: self.sign(secret, raw(url) + body)}
        return Envelope(self.name, body, headers, received_at=now, url=url)
