"""A sender that signs nothing: who knows the secret in its URL, or in a header, is believed."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from ...errors import Misuse
from ..envelope import Envelope
from ..source import Source
from .signature import NOBODY_TRUSTED, not_blank, same

__all__ = ["SharedSecret"]

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
