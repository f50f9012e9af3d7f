"""Ledgers in each play's own memory."""

from __future__ import annotations

from ...stores.base import Engine
from ...stores.memory import MemoryEngine
from ..clocks import ManualClock

__all__ = ["MemoryLedgers"]


class MemoryLedgers:
    """Gone with the play."""

    def prepare(self) -> str:
        return ""

    def open(self, name: str) -> tuple[Engine, ManualClock]:
        clock = ManualClock()
        return MemoryEngine(clock), clock

    def forget(self, name: str) -> None: ...

    def close(self) -> None: ...
