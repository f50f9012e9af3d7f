"""Where a scan of an SQL store goes on: after a row's id or, within one space, after a key."""

from __future__ import annotations

from ..errors import BadWrite

__all__ = ["after_id", "after_key", "cursor_of_key"]

KEY = "key:"


def after_id(cursor: str | None) -> int:
    if cursor is None or (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        return int(cursor or 0)
    raise _foreign(cursor)


def after_key(cursor: str | None) -> str:
    """No key is empty, so all of them come after the empty one."""
    if cursor is None or cursor.startswith(KEY):
        return (cursor or KEY).removeprefix(KEY)
    raise _foreign(cursor)


def cursor_of_key(key: str) -> str:
    return KEY + key


def _foreign(cursor: str) -> BadWrite:
    return BadWrite(f"{cursor[:40]!r} is not a cursor of this scan; begin it again without one.")
