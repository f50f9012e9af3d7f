"""A sender made up for the tests: signs with HMAC, sends one event or a list of them."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from twiceproof.inbound.source import Envelope, Event, Poison, Reading, Source

SECRET = "a secret"


class Post(Source):
    name = "post"
    varying = ("sent_at",)
    largest = 100_000

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        given = envelope.header("x-sign")
        fits = any(hmac.compare_digest(given, signature(envelope.body, secret)) for secret in secrets)
        return "" if fits else "the signature does not fit"

    def read(self, envelope: Envelope) -> Reading:
        try:
            read = msgspec.json.decode(envelope.body)
        except msgspec.DecodeError as error:
            return Poison(str(error))
        return [Event(item.get("id", ""), item) for item in (read if isinstance(read, list) else [read])]


def signature(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, sha256).hexdigest()


def posted(content: Any, secret: str = SECRET) -> tuple[str, bytes, list[tuple[str, str]]]:
    """The arguments of `app.receive`."""
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return "post", body, [("X-Sign", signature(body, secret))]
