"""The notice: repeats of one key were blocked, often enough to tell somebody."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

__all__ = ["Hook", "Notice"]


class Notice(Struct, frozen=True):
    """Repeats of one key were blocked, `count` times since the last notice of it. The same `id` is never sent twice."""

    id: str
    tenant: str
    source: str
    operation: str
    key: str
    count: int
    first_at: float
    last_at: float

    @property
    def line(self) -> str:
        source = f" from {self.source}" if self.source else ""
        return f"{self.count} repeats of {self.operation} for {self.key!r}{source} were blocked"


Hook = Callable[[Notice], None]
