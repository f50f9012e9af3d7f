"""A connection to the SQLite file, which may be left open."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

__all__ = ["Handle", "open_handle"]


class Handle(sqlite3.Connection):
    """Closed when nobody has it any more, without a word.

    `App()` at the top of a module is never closed, and need not be. From 3.13 on Python warns of such a connection,
    which fails the tests of everybody who treats warnings as errors.
    """

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.close()


def open_handle(path: Path) -> sqlite3.Connection:
    """Without transactions of Python's own, for whichever thread has it."""
    return sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False, factory=Handle)
