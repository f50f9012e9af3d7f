"""Connections for `sql_rows`: opened by URL, read only where the driver can, with a cursor that stays at the server."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ..errors import Misuse

__all__ = ["connect", "streaming"]

# A quoted text, a cast, or a parameter. Texts and casts stay as they are.
_NAMED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|::|:(?P<name>[A-Za-z_]\w*)")


def connect(db: Any) -> Any:
    """Return a new connection to a URL, or what the user's own function makes."""
    if callable(db):
        return db()
    scheme = urlsplit(db).scheme
    if scheme == "sqlite":
        return _sqlite(db)
    if scheme in ("postgresql", "postgres"):
        return _postgres(db)
    raise Misuse(f"sql_rows cannot open {scheme or 'this'} by URL; give a function that returns a DB-API connection.")


def _sqlite(url: str) -> sqlite3.Connection:
    path = unquote(url.removeprefix("sqlite://").removeprefix("/"))
    return sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None)


def _postgres(url: str) -> Any:
    try:
        import psycopg
    except ImportError:
        raise Misuse(
            "sql_rows needs psycopg for this URL; install it with: pip install 'twiceproof[postgres]'."
        ) from None
    connection = psycopg.connect(url)
    connection.read_only = True
    return connection


def streaming(connection: Any, query: str, params: Mapping[str, Any]) -> Any:
    """Return a cursor that fetches a few rows at a time. The rows of a plain cursor would all be sent at once."""
    module = type(connection).__module__.partition(".")[0]
    if module == "psycopg":
        cursor = connection.cursor(name="twiceproof_rows")
        cursor.itersize = 2_000
        return cursor.execute(_pyformat(query), params) if params else cursor.execute(query)
    cursor = connection.cursor()
    if module == "sqlite3":
        return cursor.execute(query, dict(params))
    cursor.execute(_pyformat(query), dict(params)) if params else cursor.execute(query)
    return cursor


def _pyformat(query: str) -> str:
    """Write `:name` as `%(name)s`, and a literal `%` as `%%`, outside of quoted texts too: drivers read it there."""
    return _NAMED.sub(lambda found: f"%({found['name']})s" if found["name"] else found[0], query.replace("%", "%%"))
