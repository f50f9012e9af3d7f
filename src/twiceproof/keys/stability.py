"""Signs that a key would change on every retry (K4): a time, a random number, an attempt's or delivery's id.

They are signs, not proof: a shop may number its orders with uuid4. So they lead to a warning that says how
to declare a field stable, never to a refusal.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from ..errors import UnstableKeyWarning
from .field import Field, read_field

__all__ = ["KEY", "Suspect", "name_sign", "suspects", "text_sign", "warn_unstable"]

KEY = "key"  # the path of a suspect that is the whole key: which part of it is to blame is not known

_DAY = 86_400
_SCALES = (1, 10**3, 10**6, 10**9)  # seconds, milli-, micro-, nanoseconds

_CHANGING = {"attempt", "attempts", "try", "tries", "retry", "retries", "delivery", "redelivery"}
_CHANGING |= {"nonce", "random", "rand", "now", "timestamp", "ts"}
_CHANGING_PAIRS = {"request_id", "trace_id", "span_id", "execution_id", "invocation_id", "current_time"}
_CHANGING_PAIRS |= {"sent_at", "received_at", "delivered_at", "processed_at", "fetched_at", "attempted_at"}
_VAGUE = {"id", "key", "no", "number", "uuid", "guid"}  # says nothing without what it is the id of
_DIGESTS = {"hash", "digest", "md", "sha", "checksum", "etag", "fingerprint"}

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
# Versions 1, 4, 6 and 7 are new each time; 3, 5 and 8 are made from a name, and stay.
_DASHED = re.compile(
    r"(?<![^\W_])(?<!-)[0-9a-f]{8}-[0-9a-f]{4}-([1467])[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}(?![\w-])", re.I
)
_HEX = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", re.I)
_DIGITS = re.compile(r"(?<![\w.])[0-9]{10,19}(?:\.[0-9]{1,9})?(?![\w.])")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A part of the key that looks as if it changed on every retry."""

    path: str  # dotted, as `stable=` takes it
    sign: str  # "holds a random UUID (version 4)"


def suspects(arguments: Mapping[str, Any], used: Collection[Field | str], now: float) -> list[Suspect]:
    """The fields used by the key (`order[id]`) that look unstable; `now` is in seconds since 1970."""
    fields = [read_field(use, "in the key") if isinstance(use, str) else use for use in used]
    signs = ((field, name_sign(field) or _value_sign(field, arguments, now)) for field in fields)
    return [Suspect(field.path, sign) for field, sign in signs if sign]


def warn_unstable(operation: str, found: Iterable[Suspect], stacklevel: int = 2, *, say: str = "") -> None:
    """One warning for each suspect. `stacklevel` is what the caller would give `warnings.warn`.

    `say` is what declares it stable, where that is no list of names.
    """
    for suspect in found:
        what = "the key" if suspect.path == KEY else f"the key uses {suspect.path}, which"
        way_out = say or f'stable=("{suspect.path}",)'
        message = (
            f"{operation}: {what} {suspect.sign}; if a retry brings another one, "
            f"the work is done twice. Use an id of the event itself, or, if this one stays the same on "
            f"every retry, say {way_out}"
        )
        warnings.warn(message, UnstableKeyWarning, stacklevel=stacklevel + 1)


def text_sign(text: str, now: float) -> str | None:
    """What in a text looks fresh: a random UUID, or a time within a day of `now`."""
    if found := _DASHED.search(text):
        return f"holds a UUID made anew each time (version {found[1]})"
    if any(_is_recent(Decimal(digits), now) for digits in _DIGITS.findall(text)):
        return "holds the current time (a Unix timestamp)"
    if any(_is_recent_moment(iso, now) for iso in _ISO.findall(text)):
        return "holds the current time"
    return None


def name_sign(field: Field) -> str | None:
    """What a field's name alone says."""
    words = _words(str(field.steps[-1].to) if field.steps else field.name)
    if len(words) == 1 and words[0] in _VAGUE and field.steps:
        words = _words(str(field.steps[-2].to) if len(field.steps) > 1 else field.name) + words
    if _CHANGING.isdisjoint(words) and "_".join(words[-2:]) not in _CHANGING_PAIRS:
        return None
    return "by its name changes with each attempt"


def _words(name: str) -> list[str]:
    """`deliveryId`, `delivery_id` and `X-Delivery-ID` alike."""
    return [word.lower() for word in _WORD.findall(name)]


def _value_sign(field: Field, arguments: Mapping[str, Any], now: float) -> str | None:
    value = field.find(arguments)
    if isinstance(value, str):
        return text_sign(value, now) or _hex_sign(value, field)
    if isinstance(value, UUID):
        return text_sign(str(value), now)
    if isinstance(value, datetime):
        return text_sign(value.isoformat(), now)
    if isinstance(value, (bool, date)) or not isinstance(value, (int, float, Decimal)):
        return None
    return "holds the current time (a Unix timestamp)" if _is_recent(value, now) else None


def _hex_sign(value: str, field: Field) -> str | None:
    if not _HEX.fullmatch(value) or not _DIGESTS.isdisjoint(_words(field.path)):  # one MD5 in 64 looks like it
        return None
    return "holds a UUID made anew each time (version 4)"


def _is_recent(number: int | float | Decimal, now: float) -> bool:
    try:
        moment = float(number)
    except (OverflowError, ValueError):  # a look must not fail where the key itself did not
        return False
    return any(_fresh(moment / scale, now) for scale in _SCALES)


def _is_recent_moment(iso: str, now: float) -> bool:
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return False
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return _fresh(aware.timestamp(), now)


def _fresh(moment: float, now: float) -> bool:
    """Within a day of now, and not on a full minute: a schedule's tick or a window's edge is stable."""
    return abs(moment - now) <= _DAY and moment % 60 != 0
