"""GitHub: the body under HMAC-SHA256. A redelivery has the delivery id of the first; it signs neither id nor time."""

from __future__ import annotations

from typing import Any

import msgspec

from ..envelope import Envelope
from ..source import Event, Poison, Reading
from .event_id import made_up_id, named
from .json_body import object_of
from .signature import UNSIGNED, Signed, Signer

__all__ = ["GitHub"]

PREFIX = "sha256="


class GitHub(Signer):
    name = "github"
    horizon = 3 * 86_400.0  # it never comes again by itself; a person can send it again for three days
    largest = 25 * 1024 * 1024
    covered = ("x-hub-signature-256",)  # the older one is SHA-1
    needs = ("x-github-delivery", "x-github-event")

    def signed_part(self, envelope: Envelope) -> Signed | str:
        given = envelope.header("x-hub-signature-256")
        return Signed([given.removeprefix(PREFIX)], envelope.body) if given.startswith(PREFIX) else UNSIGNED

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope)
        if isinstance(payload, Poison):
            return payload
        name = named(envelope.header("x-github-delivery"))
        if isinstance(name, Poison):
            return name
        return [Event(name, payload, envelope.header("x-github-event"), delivery=name)]

    def example(self, payload: Any = None) -> bytes:
        return msgspec.json.encode({"zen": "Keep it logically awesome.", "hook_id": 1} if payload is None else payload)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        headers = {
            "content-type": "application/json",
            "x-github-event": "ping",
            "x-github-delivery": made_up_id(body),
            "x-hub-signature-256": PREFIX + self.sign(secret, body),
        }
        return Envelope(self.name, body, headers, received_at=now)
