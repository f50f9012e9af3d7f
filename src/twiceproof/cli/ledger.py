"""Opens the ledger that a command is about. Looking at a ledger must not make one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

from ..errors import Misuse
from ..stores.grouped import GroupedStore
from ..stores.open import open_store, sqlite_file
from .failures import NoLedger
from .target import Target

__all__ = ["opened", "require_ledger", "scheme_of", "sqlite_path", "sqlite_url"]

POINT = "point to one with --store URL or TWICEPROOF_STORE"


@contextlib.contextmanager
def opened(target: Target) -> Iterator[GroupedStore]:
    require_ledger(target.url)
    store = open_store(target.url, keys=target.keys)
    try:
        yield store
    finally:
        store.close()


def require_ledger(url: str) -> None:
    """A mistyped path would otherwise become a new, empty ledger, and the answer “no claims” a wrong one."""
    if scheme_of(url) == "memory":
        raise Misuse(f"A memory:// ledger lives and dies with its own process; {POINT}.")
    path = sqlite_path(url)
    if path is None:
        return
    if not path.exists():
        raise NoLedger(f"There is no ledger at {path}; {POINT}.")
    if path.is_file() and not _is_ledger(path):
        raise NoLedger(f"{path} is not a twiceproof ledger; {POINT}.")


def _is_ledger(path: Path) -> bool:
    """Looked at without the right to write: opening it as a store would put our tables into it."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT 1 FROM sqlite_master WHERE name='twiceproof_records'").fetchone()
    except sqlite3.OperationalError:
        return True  # locked, or not to be opened: the store itself says why
    except sqlite3.DatabaseError:
        return False
    return found is not None


def scheme_of(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        raise Misuse("The store's URL cannot be read; write it like postgresql://user@host/database.") from None


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite URL; None for every other store, and for a URL that the store will refuse."""
    return sqlite_file(url) if scheme_of(url) == "sqlite" else None


def sqlite_url(path: Path) -> str:
    return "sqlite:///" + quote(str(path))
