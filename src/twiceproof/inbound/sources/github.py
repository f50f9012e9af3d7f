"""GitHub: HMAC-SHA256 over the body; neither id nor time is signed. A redelivery keeps the first delivery's id.

GitHub sends forms unless configured for JSON: the event is then the JSON in the single field `payload`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import structs

from ..source import Envelope, Event, Poison, Reading
from .parsing import made_up_id, media_type, named, object_of
from .signed import UNSIGNED, Signed, Signer

__all__ = ["GitHub"]


PREFIX = "sha256="
FORM = "application/x-www-form-urlencoded"


class GitHub(Signer):
    name = "github"
    retry_window = 3 * 86_400.0  # no automatic retries; a person can redeliver for three days
    largest = 25 * 1024 * 1024
    covered = ("x-hub-signature-256",)  # the older header is SHA-1
    needs = ("x-github-delivery", "x-github-event")

    def signed_part(self, envelope: Envelope) -> Signed | str:
        given = envelope.header("x-hub-signature-256")
        return Signed([given.removeprefix(PREFIX)], envelope.body) if given.startswith(PREFIX) else UNSIGNED

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope) if media_type(envelope) != FORM else _in_form(envelope)
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


def _in_form(envelope: Envelope) -> dict[str, Any] | Poison:
    try:
        (name, text), *more = parse_qsl(envelope.body.decode("ascii"), errors="strict", max_num_fields=2) or [("", "")]
    except ValueError as error:
        return Poison(f"its body is not a form: {str(error)[:200]}")
    if name != "payload" or more:
        return Poison("its form does not have exactly one field, payload; have the sender use application/json")
    return object_of(structs.replace(envelope, body=text.encode(), headers={"content-type": "application/json"}))
