"""One part of a key: the text of a template's field or of a composite's element.

| value                        | text                                                    |
|------------------------------|---------------------------------------------------------|
| str, int, UUID               | as it is; `0` is legal                                  |
| Decimal                      | plain digits: Decimal("1.10") is `1.1`                  |
| bool                         | `true`, `false`                                         |
| datetime, date               | ISO 8601; an aware datetime in UTC with `Z`             |
| Enum                         | its value's text                                        |
| None, blank text             | refused: two events without an id would become one;     |
|                              | blank is also what nobody can see: a zero-width space   |
| float                        | refused: 0.1 + 0.2 and 0.3 would be two keys            |
| anything else                | refused: write which of its fields is meant             |
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from unicodedata import normalize
from uuid import UUID

from ..errors import KeyRefused
from .key import is_blank
from .moment import datetime_text
from .number import decimal_text, int_text

__all__ = ["escape", "escapes", "part_text"]


def part_text(value: Any, name: str) -> str:
    """The value's text in a key. `name` is what a refusal calls it."""
    if type(value) is str:
        nothing = not value or value.isspace() if value.isascii() else is_blank(value)
        return _blank(name) if nothing else value
    if type(value) is int:
        return int_text(value)
    return _rarer_text(value, name)


def _rarer_text(value: Any, name: str) -> str:
    if isinstance(value, Enum):
        return part_text(value.value, name)
    if isinstance(value, str):
        return part_text(str.__str__(value), name)
    for kind, text in _TEXTS:
        if isinstance(value, kind):
            return _text_or_refusal(text, value, name)
    raise KeyRefused(f"{name} is {_what(value)}", field=name)


def _text_or_refusal(text: Callable[[Any], str], value: Any, name: str) -> str:
    try:
        return text(value)
    except ValueError as why:
        raise KeyRefused(f"{name} has no text: {why}; use an id that is always there", field=name) from None


def _what(value: Any) -> str:
    if value is None:
        return "None: a key without it would be shared by all such events; use an id that is always there"
    kind = type(value).__qualname__
    if isinstance(value, float):
        return f"a {kind}, whose digits may differ between two equal events; use an int, a Decimal or text"
    return f"a {kind}, which has no short text; name one field of it, as in {{order[id]}}, or use body_hash()"


def _blank(name: str) -> str:
    message = f"{name} is blank: a key without it would be shared by all such events; "
    raise KeyRefused(message + "use an id that is always there", field=name)


_TEXTS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (bool, lambda value: "true" if value else "false"),  # before int: a bool is one
    (int, int_text),
    (UUID, str),
    (Decimal, decimal_text),
    (datetime, datetime_text),  # before date: a datetime is one
    (date, date.isoformat),
)


def escapes(separators: str) -> dict[int, str]:
    """Percent-encodings of the separators, and of `%` itself: "a:b","c" and "a","b:c" are two keys."""
    return {ord(sign): f"%{ord(sign):02X}" for sign in "%" + separators}


def escape(text: str, table: dict[int, str]) -> str:
    # NFC first: U+037E is a `;` afterwards, and must be escaped as one.
    return (text if text.isascii() else normalize("NFC", text)).translate(table)
