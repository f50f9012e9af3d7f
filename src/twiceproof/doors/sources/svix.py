"""Svix: Standard Webhooks under header names of its own, or under those of the standard."""

from __future__ import annotations

from ..envelope import Envelope
from .standard_webhooks import PARTS, StandardWebhooks

__all__ = ["Svix"]


class Svix(StandardWebhooks):
    name = "svix"
    prefix = "svix"
    horizon = 99_305.0  # 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h

    def __init__(self) -> None:
        super().__init__()
        self.unbranded = tuple(f"{StandardWebhooks.prefix}-{part}" for part in PARTS)
        self.needs = (*self.needs, self.unbranded[0])

    def headers_of(self, envelope: Envelope) -> tuple[str, ...]:
        """Its own wherever one of them came: the id that is read is then the one that is signed."""
        return self.covered if any(envelope.header(name) for name in self.covered) else self.unbranded
