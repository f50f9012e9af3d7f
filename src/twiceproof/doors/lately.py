"""What was looked at a moment ago: in a storm of duplicates, one look in a few seconds is enough."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["SPAN", "Lately"]

SPAN = 5.0  # seconds
MOST = 10_000  # names; the oldest is forgotten first


class Lately:
    """In this process' memory. To forget costs a look, and nothing else."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def has(self, name: str, now: float) -> bool:
        seen = self._seen.get(name)
        return seen is not None and now - seen < SPAN

    def add(self, name: str, now: float) -> None:
        self._seen[name] = now
        self._seen.move_to_end(name)
        if len(self._seen) > MOST:
            self._seen.popitem(last=False)
