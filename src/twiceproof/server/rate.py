"""How often one caller may call: a bucket each, in this process's memory, which holds two seconds' worth."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Buckets"]

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
