"""Canonical JSON: one text per value, so that equal requests have equal hashes.

| value                         | text                                                                   |
|-------------------------------|------------------------------------------------------------------------|
| str                           | NFC, UTF-8; only `"`, `\\` and control characters are escaped          |
| int, float, Decimal           | plain digits (number.py): 1, 1.0 and Decimal("1.00") are `1`           |
| True, False, None             | `true`, `false`, `null`: True is not 1                                 |
| datetime, date, time, timedelta | ISO 8601 in quotes (moment.py): aware ones in UTC with `Z`           |
| UUID, bytes, Enum             | its text, its base64, its value                                        |
| list, tuple, set              | an array; a set's elements in the order of their texts                 |
| mapping, dataclass, Struct    | an object, keys by code point; keys are all text, or all int           |

Everything else is refused with the path to it: a guess here would answer one request with another's result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import ValueRefused
from .writers import DEEPEST, Refused, write

__all__ = ["canonical"]

_fast: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode
_ATOMS = frozenset((int, bool, type(None)))  # whose text msgspec writes as we do


def canonical(value: Any) -> bytes:
    """The value's one JSON text. Raises ValueRefused, naming the path, for what has none."""
    if _plain(value, DEEPEST):
        try:
            return _fast(value)
        except (ValueError, OverflowError):
            pass  # an int of thousands of digits
    return canonical_slowly(value)


def canonical_slowly(value: Any) -> bytes:
    """The same for every kind of value. `canonical` must never differ from it by a byte."""
    try:
        return write(value, DEEPEST)
    except Refused as refused:
        path = refused.path()
        raise ValueRefused(f"{path} {refused.reason}; {refused.move}", path=path) from refused.__cause__


def _plain(value: Any, room: int) -> bool:
    """Is it made of what msgspec writes just as we do: ASCII text, numbers, bool, None, list, dict?"""
    kind = type(value)
    if kind is dict:
        return room > 0 and _plain_dict(value, room - 1)
    if kind is str:
        return bool(value.isascii())
    if kind is list:
        return room > 0 and all(_plain(item, room - 1) for item in value)
    if kind is float:  # others are written with an exponent or a trailing .0; NaN fails here too
        return bool(1e-4 <= abs(value) < 1e15 and value % 1 != 0)
    return kind in _ATOMS


def _plain_dict(value: dict[Any, Any], room: int) -> bool:
    for key, item in value.items():
        if type(key) is not str or not key.isascii():
            return False
        kind = type(item)  # the commonest kinds are met here, without a call for each
        if kind is str:
            if not item.isascii():
                return False
        elif kind not in _ATOMS and not _plain(item, room):
            return False
    return True
