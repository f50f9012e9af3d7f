"""What SQL stores share: their migrations, and cursors of scans."""

from __future__ import annotations

from importlib.resources import files

from msgspec import Struct

from ..errors import BadWrite

__all__ = ["Migration", "after_id", "after_key", "cursor_of_key", "migrations"]


KEY = "key:"


def after_id(cursor: str | None) -> int:
    if cursor is None or (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        return int(cursor or 0)
    raise _foreign(cursor)


def after_key(cursor: str | None) -> str:
    """No key is empty, so that all of them come after the empty one."""
    if cursor is None or cursor.startswith(KEY):
        return (cursor or KEY).removeprefix(KEY)
    raise _foreign(cursor)


def cursor_of_key(key: str) -> str:
    return KEY + key


def _foreign(cursor: str) -> BadWrite:
    return BadWrite(f"{cursor[:40]!r} is not a cursor of this scan; begin it again without one.")


class Migration(Struct, frozen=True):
    number: int
    name: str
    sql: str


def migrations(dialect: str) -> list[Migration]:
    """The dialect's migrations in order: `0001_schema.sql` is number 1."""
    found = [
        Migration(int(file.name[:4]), file.name, file.read_text("utf-8"))
        for file in files(__package__).joinpath(dialect, "migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)
