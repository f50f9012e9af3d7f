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
| pydantic model                | as its own JSON (`model_dump(mode="json")`), by its fields' names      |

Everything else is refused with the path to it: a guess here would answer one request with another's result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import ValueRefused
from .writers import DEEPEST, Refused, write

__all__ = ["canonical"]

_encode: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode
_ATOMS = frozenset((int, bool, type(None)))  # whose text msgspec writes as we do


def canonical(value: Any) -> bytes:
    """The value's one JSON text. Raises ValueRefused, naming the path, for what has none."""
    return canonical_fast(value) or canonical_slowly(value)


def canonical_fast(value: Any) -> bytes | None:
    """As msgspec writes it, where that is the same; None where it may not be."""
    kind = type(value)
    if not (kind is dict or kind is list) or not _is_plain(value, DEEPEST):
        return None
    try:
        text = _encode(value)
    except (TypeError, ValueError, OverflowError):
        return None  # a key that is no text, half a surrogate pair, an int of thousands of digits
    return text if text.isascii() else None


def canonical_slowly(value: Any) -> bytes:
    """The same for every kind of value. `canonical` must never differ from it by a byte."""
    try:
        return write(value, DEEPEST)
    except Refused as refused:
        path = refused.path()
        raise ValueRefused(f"{path} {refused.reason}; {refused.next_move()}", path=path) from refused.__cause__


def _is_plain(part: Any, room: int) -> bool:
    """Is this dict or list made of what msgspec writes just as we do, as long as all of its text is ASCII?"""
    if room <= 0:
        return False
    for item in part.values() if type(part) is dict else part:
        kind = type(item)
        if kind is str:
            continue
        if kind is dict or kind is list:
            if not _is_plain(item, room - 1):
                return False
        elif kind not in _ATOMS and not (kind is float and _is_plain_float(item)):
            return False
    return True


def _is_plain_float(value: float) -> bool:
    """Others are written with an exponent or a trailing .0; NaN fails here too."""
    return 1e-4 <= abs(value) < 1e15 and value % 1 != 0
