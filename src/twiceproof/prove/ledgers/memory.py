"""Ledgers in each play's own memory."""

from __future__ import annotations

from ...stores.base import Engine
from ...stores.memory import MemoryEngine
from ..clocks import ManualClock, clock_at

__all__ = ["MemoryLedgers"]


class MemoryLedgers:
    """Gone with the play."""

    def prepare(self) -> str:
        return ""

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        clock = clock_at(at)
        return MemoryEngine(clock), clock

    def forget(self, name: str) -> None: ...

    def close(self) -> None: ...
