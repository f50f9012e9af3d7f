"""Base classes for senders that sign with HMAC, and for those that only send a shared secret."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Sequence
from typing import Literal
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct

from ...errors import Misuse
from ...keys.key import is_blank
from ..source import WINDOW, Envelope, Source

__all__ = [
    "NO_KEY",
    "NO_SECRET",
    "UNSIGNED",
    "WRONG_SIGNATURE",
    "Encoding",
    "SharedSecret",
    "Signed",
    "Signer",
    "mac",
    "moment",
    "not_blank",
    "raw",
    "same",
    "stale",
]


UNSIGNED = "it has no signature in its sender's format"
WRONG_SIGNATURE = "its signature matches none of the secrets"
NO_SECRET = "no secret is set for this webhook, so nothing can be verified; set one"  # noqa: S105 - a message
NO_KEY = "none of its secrets is a valid key; copy them again from the sender"

Encoding = Literal["hex", "base64"]


class Signed(Struct, frozen=True):
    """A delivery's signatures, the signed bytes, and the signed time."""

    given: Sequence[str]
    message: bytes
    at: float | None = None  # None: the sender signs no time


class Signer(Source):
    """A sender that signs with a shared secret. Subclasses say where the signatures are and how one is made."""

    def signed_part(self, envelope: Envelope) -> Signed | str:
        """Return the signed part, or why there is nothing to verify."""
        raise NotImplementedError

    def sign(self, secret: str, message: bytes) -> str:
        """Return the signature of these bytes as the sender writes it; "" if the secret is invalid."""
        return mac(raw(secret), message)

    def signatures(self, secret: str, part: Signed) -> Sequence[str]:
        """Return all acceptable signatures of this part; several if the sender's signed text varies."""
        return [self.sign(secret, part.message)]

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        part = self.signed_part(envelope)
        if isinstance(part, str):
            return part
        known = not_blank(secrets)
        if not known:
            return NO_SECRET
        expected = [signature for secret in known for signature in self.signatures(secret, part) if signature]
        if not expected:
            return NO_KEY
        if not any(same(ours, theirs) for ours in expected for theirs in part.given):
            return WRONG_SIGNATURE
        return "" if part.at is None else stale(part.at, now, self.window)


def not_blank(secrets: Sequence[str]) -> list[str]:
    """Drop empty and blank secrets, which anyone could guess."""
    return [secret for secret in secrets if not is_blank(secret)]


def mac(key: bytes, message: bytes, algorithm: str = "sha256", encoding: Encoding = "hex") -> str:
    made = hmac.digest(key, message, algorithm)
    return made.hex() if encoding == "hex" else b64encode(made).decode()


def same(ours: str, theirs: str) -> bool:
    """Compare as text in constant time: one signature has several base64 spellings, and only one is the sender's."""
    return hmac.compare_digest(raw(ours), raw(theirs))


def raw(text: str) -> bytes:
    """Return the bytes of a header or a secret. Never fails, however the server decoded them."""
    return text.encode("utf-8", "surrogatepass")


def moment(text: str) -> float | None:
    """Parse seconds since 1970 from a header; None if it is not a number."""
    return float(text) if text.isascii() and text.isdigit() else None


def stale(at: float, now: float, window: float) -> str:
    """Return why the signed time is refused, or "". Checked in both directions: a time in the future would make a
    captured delivery valid until then.
    """
    if now - at > window:
        return f"it was signed {now - at:.0f} s ago; at most {window:.0f} s are accepted"
    if at - now > WINDOW:
        return f"it was signed {at - now:.0f} s in the future; check this machine's clock"
    return ""


BEARER = "Bearer "


class SharedSecret(Source):
    """A sender that proves itself by a secret in a URL parameter (`?code=…`) or in a header; only one is used."""

    signed = False

    def __init__(self, *, parameter: str = "code", header: str = "") -> None:
        if not (parameter or header):
            raise Misuse("A sender without signatures must send a secret; name its parameter= or its header=.")
        self.parameter = "" if header else parameter
        self.header = header.lower()
        self.by_authorization = self.header == "authorization"
        self.greets_by_secret = bool(self.parameter)  # the secret is in the URL, whatever the method

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        known = not_blank(secrets)
        if not known:
            return NO_SECRET
        given = self._given(envelope)
        if len(given) != 1:  # with two, a proxy may have checked the other one
            return f"it has {len(given) or 'no'} secrets in {self._where()}"
        return "" if any(same(secret, given[0]) for secret in known) else "its secret matches none of those set"

    def _given(self, envelope: Envelope) -> list[str]:
        if self.header:
            value = envelope.header(self.header)
            return [value.removeprefix(BEARER)] if value else []
        return [value for name, value in parse_qsl(envelope.query_string, errors="replace") if name == self.parameter]

    def _where(self) -> str:
        return f"the header {self.header}" if self.header else f"the URL (?{self.parameter}=…)"

    def enclosed(self, body: bytes, headers: dict[str, str], secret: str, now: float) -> Envelope:
        """Return a delivery with the secret in its place."""
        if self.header:
            value = BEARER + secret if self.header == "authorization" else secret
            return Envelope(self.name, body, {**headers, self.header: value}, received_at=now)
        return Envelope(self.name, body, headers, received_at=now, query=urlencode({self.parameter: secret}))
