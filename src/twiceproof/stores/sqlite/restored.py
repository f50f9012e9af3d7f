"""Notices that the ledger's file was copied or restored from a backup, so that the doctor can tell.

A file's contents cannot show that they are older than they were. So the largest number is also kept as an extended
attribute, which the file system stores beside the contents: it is lost when the file is replaced, and stays when an
older copy is written over it. The ledger itself stores the file's inode.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from ...clock import Clock
from .connection import begin_immediate, open_handle, translated
from .schema import require_ledger

__all__ = ["FileMark", "accept_restored"]

ATTRIBUTE = "user.twiceproof.number"
PLACE = "SELECT value FROM twiceproof_facts WHERE name='place'"
NOTE = "INSERT OR REPLACE INTO twiceproof_facts VALUES (?, ?)"
COUNTER = "SELECT number FROM twiceproof_counter"
PATIENCE = 10.0  # seconds to wait for another process that writes


class FileMark:
    """The mark of one file, kept beside its contents."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note_restored(self, db: sqlite3.Connection, now: float) -> None:
        """Compare file and mark, within the transaction that opens the ledger and before it draws a number."""
        (number,) = db.execute(COUNTER).fetchone()
        known = db.execute(PLACE).fetchone()
        is_same = known == (self._place(),) and (self._read() or 0) <= number
        self._write(number)
        if is_same:
            return
        db.execute(NOTE, ("place", self._place()))
        if known is not None:
            db.execute(NOTE, ("restored", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))))

    def update(self, db: sqlite3.Connection) -> None:
        """Mark the number that was committed last, outside of a transaction or before it draws one."""
        (number,) = db.execute(COUNTER).fetchone()
        self._write(number)

    def _place(self) -> str:
        return f"{self._path.stat().st_ino}/{'unmarked' if self._read() is None else 'marked'}"

    def _read(self) -> int | None:
        """Return the marked number; None where there is none, as on a file system without such attributes."""
        try:
            return int(os.getxattr(self._path, ATTRIBUTE))
        except (OSError, ValueError, AttributeError):
            return None

    def _write(self, number: int) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setxattr(self._path, ATTRIBUTE, str(number).encode())


def accept_restored(path: Path, clock: Clock) -> None:
    """End the doctor's warning, because an operator said so."""
    require_ledger(path)
    with translated(), contextlib.closing(open_handle(path)) as db:
        begin_immediate(db, clock, PATIENCE)
        db.execute("DELETE FROM twiceproof_facts WHERE name='restored'")
        db.execute("COMMIT")
