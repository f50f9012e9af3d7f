"""Ledgers in private SQLite files: each a copy of one that was made once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from ...stores.base import Engine
from ...stores.sqlite import SqliteEngine
from ..clocks import ManualClock, clock_at

__all__ = ["FileLedgers"]


class FileLedgers:
    """A play's file need not survive a power cut: a kill is played, not suffered."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="twiceproof-prove-"))
        self._empty = self._directory / "empty.db"
        self._made = 0
        _open(self._empty, ManualClock()).close()  # the schema is laid out once, not for every play

    def prepare(self) -> str:
        self._made += 1
        path = self._directory / f"play-{self._made}.db"
        shutil.copy(self._empty, path)  # with its rights: only the owner may read it
        return str(path)

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        clock = clock_at(at)
        return _open(Path(name), clock), clock

    def forget(self, name: str) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _open(path: Path, clock: ManualClock) -> Engine:
    return SqliteEngine(path, clock=clock, durability="process")
