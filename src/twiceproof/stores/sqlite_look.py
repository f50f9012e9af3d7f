"""Looks at a SQLite file before it is opened as a store, which would put our tables into it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from urllib.parse import quote

from .no_ledger import POINT, NoLedger

__all__ = ["require_ledger"]


def require_ledger(path: Path) -> None:
    """A mistyped path would otherwise become a new, empty ledger, and the answer “no claims” a wrong one."""
    if not path.exists():
        raise NoLedger(f"There is no ledger at {path}; {POINT}.")
    if path.is_file() and not _is_ledger(path):
        raise NoLedger(f"{path} is not a twiceproof ledger; {POINT}.")


def _is_ledger(path: Path) -> bool:
    """Looked at without the right to write."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT 1 FROM sqlite_master WHERE name='twiceproof_records'").fetchone()
    except sqlite3.OperationalError:
        return True  # locked, or not to be opened: the store itself says why
    except sqlite3.DatabaseError:
        return False
    return found is not None
