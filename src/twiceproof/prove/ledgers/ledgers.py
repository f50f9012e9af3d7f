"""Where plays keep their ledgers: a fresh one for each, made and removed by whoever outlives the play."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

from ...errors import Misuse
from ...stores.base import Engine
from ...stores.open import refuse_driver
from ..clocks import ManualClock

__all__ = ["Ledgers", "ledgers_at"]


class Ledgers(Protocol):
    """`open` is called in the play, everything else in the process that outlives it."""

    def prepare(self) -> str:
        """Make a ledger that nobody has used; its name."""

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        """The ledger, and the clock that it goes by; a play's later processes go on from its time."""

    def forget(self, name: str) -> None:
        """The play is over, however it ended: nothing of it stays."""

    def close(self) -> None: ...


def ledgers_at(store: str) -> Ledgers:
    """`sqlite` and `memory` need nothing. Of a server, only what is empty or made here is touched."""
    scheme = urlsplit(store).scheme
    if store == "sqlite":
        from .files import FileLedgers

        return FileLedgers()
    if scheme == "memory" or store == "memory":
        from .memory import MemoryLedgers

        return MemoryLedgers()
    if scheme in ("postgresql", "postgres"):
        from .schemas import SchemaLedgers

        return SchemaLedgers(store)
    if scheme in ("redis", "rediss"):
        from .databases import DatabaseLedgers

        return DatabaseLedgers(store)
    refuse_driver(store)
    raise Misuse(
        "prove keeps its ledgers in memory://, postgresql://… (a schema of its own for each play) or redis://…/15 "
        "(an empty database); leave --store out for private SQLite files."
    )
