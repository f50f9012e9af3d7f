"""Opens the ledger that a command is about. Looking at a ledger must not make one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

from ..errors import Misuse
from ..stores import sqlite_look
from ..stores.grouped import GroupedStore
from ..stores.no_ledger import POINT
from ..stores.open import open_store, sqlite_file
from .target import Target

__all__ = ["opened", "require_ledger", "scheme_of", "sqlite_path", "sqlite_url"]


@contextlib.contextmanager
def opened(target: Target, *, create: bool = False) -> Iterator[GroupedStore]:
    """The one way in: what opens it without the keys would write rows that others refuse, or believe unsealed."""
    if not create:
        require_ledger(target.url)
    store = open_store(target.url, keys=target.keys, create=create)
    try:
        yield store
    finally:
        store.close()


def require_ledger(url: str) -> None:
    """Of a file it is known before anything is opened. What a server has, `open_store(create=False)` asks it."""
    if scheme_of(url) == "memory":
        raise Misuse(f"A memory:// ledger lives and dies with its own process; {POINT}.")
    path = sqlite_path(url)
    if path is not None:
        sqlite_look.require_ledger(path)


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
