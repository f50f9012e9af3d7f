"""Limits and rate buckets."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["Buckets", "ServerLimits"]


def _of(text: str) -> Meta:
    return Meta(description=text)


class ServerLimits(Struct, frozen=True):
    """Times in seconds, sizes in bytes, rates per second. 0 for a rate is no limit."""

    connections: Annotated[int, _of("connections at once")] = 2_000
    requests: Annotated[int, _of("requests under way at once, once they are read")] = 512
    bodies: Annotated[int, _of("bytes of bodies over 64 KiB that are read or worked on, all together")] = 256 * 1024**2
    head: Annotated[int, _of("bytes of the request line and all headers")] = 32 * 1024
    headers: Annotated[int, _of("headers")] = 100
    deadline: Annotated[float, _of("seconds in which head and body must be here, however slowly they come")] = 10.0
    idle: Annotated[float, _of("seconds between two requests of one connection")] = 30.0
    depth: Annotated[int, _of("brackets inside each other in JSON; a webhook's source counts its own")] = 64
    per_token: Annotated[float, _of("requests per second of one token")] = 1_000.0
    # This machine's own are not counted.
    per_source: Annotated[float, _of("requests per second of one address without a good token")] = 1_000.0


MOST = 10_000  # callers remembered; the one that was quiet for longest is forgotten first
BURST = 2.0  # seconds' worth


class Buckets:
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._full = max(1.0, rate * BURST)
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and as of when

    def is_empty(self, caller: str, now: float) -> bool:
        """Whether it would be refused; nothing is taken."""
        left, at = self._levels.get(caller, (self._full, now))
        return bool(self._rate) and left + (now - at) * self._rate < 1.0

    def take(self, caller: str, now: float) -> float:
        """0: go on. Otherwise, in how many seconds to come back."""
        if not self._rate:
            return 0.0
        left, at = self._levels.pop(caller, (self._full, now))
        left = min(self._full, left + (now - at) * self._rate)
        allowed = left >= 1.0
        self._levels[caller] = (left - 1.0 if allowed else left, now)
        if len(self._levels) > MOST:
            self._levels.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self._rate
