"""Versions of an object: integers, times, dates or texts, each compared in its own way and never with another kind.

| compare     | takes                                                  | order                         |
|-------------|--------------------------------------------------------|-------------------------------|
| `"integer"` | int; text of digits, if said so                        | by number                     |
| `"time"`    | aware datetime; ISO 8601 text with a zone              | by instant, to the last digit |
| `"date"`    | date; `2026-05-01`                                     | by day                        |
| `"text"`    | any other text, only if said so: ULIDs, fixed widths   | by code point                 |

What is not said is seen from the value; text that could be read in two ways is refused, not guessed at.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any, Literal, NoReturn
from unicodedata import normalize

from msgspec import Struct

from ...errors import KeyRefused
from ...keys.key import is_blank

__all__ = ["COMPARES", "Compare", "Version", "read_version"]

Compare = Literal["integer", "time", "date", "text"]
COMPARES: tuple[Compare, ...] = ("integer", "time", "date", "text")
LONGEST = 128

_DIGITS = re.compile(r"-?[0-9]{1,40}", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
# The fraction apart: Python cuts it off after six digits, and two versions would become one.
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.([0-9]{1,18}))?(Z|z|[+-][0-9]{2}:?[0-9]{2})",
    re.ASCII,
)


class Version(Struct, frozen=True):
    """`text` is canonical: two versions of one kind are equal if their texts are."""

    kind: Compare
    text: str

    @property
    def place(self) -> tuple[Any, ...]:
        """What is compared, within one kind."""
        if self.kind == "integer":
            return (int(self.text),)
        if self.kind == "time":
            whole, _, fraction = self.text.removesuffix("Z").partition(".")
            return whole, fraction  # digits of a fraction are in order as text: .5 is after .499
        return (self.text,)

    @property
    def number(self) -> int | None:
        return int(self.text) if self.kind == "integer" else None


def read_version(value: Any, compare: Compare | None, field: str) -> Version:
    """Raises KeyRefused, saying what to declare, for what has no place in an order."""
    kind = compare or _seen(value, field)
    text = _READERS[kind](value)
    if text is None:
        _refuse(value, field, f"cannot be compared as {kind}")
    return Version(kind, text)


def _seen(value: Any, field: str) -> Compare:
    """What kind a value is, if there is no doubt."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "integer"
    if isinstance(value, datetime):
        return "time"
    if isinstance(value, date):
        return "date"
    if isinstance(value, str) and _TIME.fullmatch(value):
        return "time"
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        _refuse(value, field, "has no order of its own")
    return "date"


def _integer(value: Any) -> str | None:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 10**40:
        return None
    return str(value)


def _time(value: Any) -> str | None:
    if isinstance(value, datetime):
        value = value.isoformat()
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:  # also a time without a zone: an hour twice a year would be in the wrong place
        return None
    try:
        moment = datetime.fromisoformat(found[1].upper() + found[3].upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    fraction = (found[2] or "").rstrip("0")
    return moment.strftime("%Y-%m-%dT%H:%M:%S").zfill(19) + (f".{fraction}" if fraction else "") + "Z"


def _date(value: Any) -> str | None:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    try:
        return date.fromisoformat(value).isoformat() if _DATE.fullmatch(value) else None
    except (ValueError, TypeError):
        return None


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or is_blank(value) or len(value) > LONGEST or not value.isprintable():
        return None
    return normalize("NFC", value)


_READERS = {"integer": _integer, "time": _time, "date": _date, "text": _text}


def _refuse(value: Any, field: str, why: str) -> NoReturn:
    raise KeyRefused(
        f"the version {field} is {_shown(value)}, which {why}; use an integer or a time with its zone, or say "
        'compare="integer", "time", "date" or "text" if all its values are of that kind',
        field=field,
    )


def _shown(value: Any) -> str:
    if isinstance(value, str | int | float | datetime | date) and value is not True and value is not False:
        return f"{value!r:.60}"
    return "None" if value is None else f"a {type(value).__qualname__}"
