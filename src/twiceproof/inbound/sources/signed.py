"""HMAC and shared-secret senders: what they have in common."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Sequence
from typing import Literal
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct

from ...errors import Misuse
from ...keys.key import is_blank
from ..envelope import Envelope
from ..source import WINDOW, Source

__all__ = [
    "FORGED",
    "NOBODY_TRUSTED",
    "NO_KEY",
    "UNSIGNED",
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


UNSIGNED = "it has no signature of the kind that its sender makes"
FORGED = "its signature fits none of the secrets"
NOBODY_TRUSTED = "no secret is set for this webhook, so nothing can be believed; set one"
NO_KEY = "none of its secrets can be a key; copy them again from the sender"

Encoding = Literal["hex", "base64"]


class Signed(Struct, frozen=True):
    """What a delivery says about itself: its signatures, the bytes that they are made over, and its time."""

    given: Sequence[str]
    message: bytes
    at: float | None = None  # None: the sender signs no time


class Signer(Source):
    """A sender that signs with a shared secret. It says where its signatures are, and how one is made."""

    def signed_part(self, envelope: Envelope) -> Signed | str:
        """What is signed, or why there is nothing to verify."""
        raise NotImplementedError

    def sign(self, secret: str, message: bytes) -> str:
        """The signature of these bytes, as the sender writes it; "" for a secret that cannot be one."""
        return mac(raw(secret), message)

    def signatures(self, secret: str, part: Signed) -> Sequence[str]:
        """All that the sender may have made of this part; several, where it does not always sign the same text."""
        return [self.sign(secret, part.message)]

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        part = self.signed_part(envelope)
        if isinstance(part, str):
            return part
        known = not_blank(secrets)
        if not known:
            return NOBODY_TRUSTED
        expected = [signature for secret in known for signature in self.signatures(secret, part) if signature]
        if not expected:
            return NO_KEY
        if not any(same(ours, theirs) for ours in expected for theirs in part.given):
            return FORGED
        return "" if part.at is None else stale(part.at, now, self.window)


def not_blank(secrets: Sequence[str]) -> list[str]:
    """An empty secret is one that everybody knows, and so is one of spaces."""
    return [secret for secret in secrets if not is_blank(secret)]


def mac(key: bytes, message: bytes, algorithm: str = "sha256", encoding: Encoding = "hex") -> str:
    made = hmac.digest(key, message, algorithm)
    return made.hex() if encoding == "hex" else b64encode(made).decode()


def same(ours: str, theirs: str) -> bool:
    """As texts: the base64 of one signature can be spelled in several ways, and only one of them was sent."""
    return hmac.compare_digest(raw(ours), raw(theirs))


def raw(text: str) -> bytes:
    """The bytes of a header or a secret. Whatever a server made of them, this does not fail."""
    return text.encode("utf-8", "surrogatepass")


def moment(text: str) -> float | None:
    """Seconds since 1970 as a header says them; None if it does not."""
    return float(text) if text.isascii() and text.isdigit() else None


def stale(at: float, now: float, window: float) -> str:
    """Both ways: a time in the future would make a captured delivery believable for as long as it likes."""
    if now - at > window:
        return f"it was signed {now - at:.0f} s ago, and at most {window:.0f} s are believed"
    if at - now > WINDOW:
        return f"it was signed {at - now:.0f} s in the future; check this machine's clock"
    return ""


BEARER = "Bearer "


class SharedSecret(Source):
    """`parameter` names the one in the URL (`?code=…`), `header` a header; exactly one of them is looked at."""

    signed = False

    def __init__(self, *, parameter: str = "code", header: str = "") -> None:
        if not (parameter or header):
            raise Misuse("A sender that signs nothing must know a secret; name its parameter= or its header=.")
        self.parameter = "" if header else parameter
        self.header = header.lower()
        self.by_authorization = self.header == "authorization"
        self.greets_by_secret = bool(self.parameter)  # it is in the URL, whatever the method

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        known = not_blank(secrets)
        if not known:
            return NOBODY_TRUSTED
        given = self._given(envelope)
        if len(given) != 1:  # two of them: a proxy may have looked at the other one
            return f"it has {len(given) or 'no'} secret in {self._where()}"
        return "" if any(same(secret, given[0]) for secret in known) else "its secret is none of those set"

    def _given(self, envelope: Envelope) -> list[str]:
        if self.header:
            value = envelope.header(self.header)
            return [value.removeprefix(BEARER)] if value else []
        return [value for name, value in parse_qsl(envelope.asked, errors="replace") if name == self.parameter]

    def _where(self) -> str:
        return f"the header {self.header}" if self.header else f"the URL (?{self.parameter}=…)"

    def enclosed(self, body: bytes, headers: dict[str, str], secret: str, now: float) -> Envelope:
        """A delivery with the secret where it belongs."""
        if self.header:
            word = BEARER + secret if self.header == "authorization" else secret
            return Envelope(self.name, body, {**headers, self.header: word}, received_at=now)
        return Envelope(self.name, body, headers, received_at=now, query=urlencode({self.parameter: secret}))
