"""Detects keys that seem to change on every retry, and warns.

Signs of an unstable key are a time, a random number, or the id of an attempt or a delivery. They are no proof (a shop
may number its orders with uuid4), so they lead to a warning that says how to declare a field stable, never to a
refusal.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from ..errors import Misuse, UnstableKeyWarning
from .key import TemplateField, read_field
from .maker import KeyMaker

__all__ = ["KEY", "KeyWatch", "Suspect", "UnstableKeyDetector", "name_sign", "suspects", "text_sign", "warn_unstable"]


_PACKAGE = __name__.partition(".")[0] + "."
KEY = "key"  # the path of a suspect that is the whole key: which part of it is to blame is not known

_DAY = 86_400
_SCALES = (1, 10**3, 10**6, 10**9)  # seconds, milli-, micro-, nanoseconds

_CHANGING = {"attempt", "attempts", "try", "tries", "retry", "retries", "delivery", "redelivery"}
_CHANGING |= {"nonce", "random", "rand", "now", "timestamp", "ts"}
_CHANGING_PAIRS = {"request_id", "trace_id", "span_id", "execution_id", "invocation_id", "current_time"}
_CHANGING_PAIRS |= {"sent_at", "received_at", "delivered_at", "processed_at", "fetched_at", "attempted_at"}
_STABLE_PAIRS = {"delivery_key"}  # what a sender of messages repeats at every delivery
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


def suspects(arguments: Mapping[str, Any], used: Collection[TemplateField | str], now: float) -> list[Suspect]:
    """Return the fields of the key (`order[id]`) that look unstable; `now` is in seconds since 1970."""
    fields = [read_field(use, "in the key") if isinstance(use, str) else use for use in used]
    signs = ((field, name_sign(field) or _value_sign(field, arguments, now)) for field in fields)
    return [Suspect(field.path, sign) for field, sign in signs if sign]


def warn_unstable(operation: str, found: Iterable[Suspect], stacklevel: int = 2, *, say: str = "") -> None:
    """Warn about each suspect. `stacklevel` is what the caller would give `warnings.warn`.

    `say` is the option that declares it stable, where that is no list of names.
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
    """Return what in a text looks new: a random UUID, or a time within a day of `now`."""
    if found := _DASHED.search(text):
        return f"holds a UUID made anew each time (version {found[1]})"
    if any(_is_recent(Decimal(digits), now) for digits in _DIGITS.findall(text)):
        return "holds the current time (a Unix timestamp)"
    if any(_is_recent_moment(iso, now) for iso in _ISO.findall(text)):
        return "holds the current time"
    return None


def name_sign(field: TemplateField) -> str | None:
    """Return what a field's name alone suggests."""
    words = _words(str(field.steps[-1].to) if field.steps else field.name)
    if len(words) == 1 and words[0] in _VAGUE and field.steps:
        words = _words(str(field.steps[-2].to) if len(field.steps) > 1 else field.name) + words
    pair = "_".join(words[-2:])
    if pair in _STABLE_PAIRS or (_CHANGING.isdisjoint(words) and pair not in _CHANGING_PAIRS):
        return None
    return "by its name changes with each attempt"


def _words(name: str) -> list[str]:
    """`deliveryId`, `delivery_id` and `X-Delivery-ID` alike."""
    return [word.lower() for word in _WORD.findall(name)]


def _value_sign(field: TemplateField, arguments: Mapping[str, Any], now: float) -> str | None:
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


def _hex_sign(value: str, field: TemplateField) -> str | None:
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
    """Return whether a time is within a day of now, and not on a full minute, as stable ticks and windows are."""
    return abs(moment - now) <= _DAY and moment % 60 != 0


_LOOKS = 20  # a mistake shows in the first calls; after them a look costs one comparison
_LONGEST = 10_000  # letters of an argument that are looked at
_REMAKES = 3  # of these, calls whose key function is asked a second time


class UnstableKeyDetector:
    """One per operation. `stable` names fields (`order.id`) or whole arguments (`order`) known to stay."""

    def __init__(self, operation: str, maker: KeyMaker, stable: Collection[str] = (), looks: int = _LOOKS) -> None:
        if isinstance(stable, str):  # stable="id" would declare i and d
            raise Misuse(f'stable={stable!r} is one text, not a list of names; write stable=("{stable}",)')
        self.operation = operation
        self._maker = maker
        self._told = {_dotted(name) for name in stable}
        self._left = looks
        self.is_on = looks > 0  # while it is not, there is no need to look
        self._remakes = _REMAKES

    def look(self, arguments: Mapping[str, Any], key: str, now: float) -> None:
        """Warn, at the caller's line outside this package, if `key` looks unstable. Called after each `make`."""
        if not self.is_on:
            return
        self._left -= 1
        self.is_on = self._left > 0
        found = [suspect for suspect in self._suspects(arguments, key, now) if self._is_new(suspect)]
        # Remembered first: where warnings are errors, the next call must not stop at the same one.
        self._told.update(suspect.path for suspect in found)
        if found:
            warn_unstable(self.operation, found, _level_outside())

    def _suspects(self, arguments: Mapping[str, Any], key: str, now: float) -> list[Suspect]:
        if not self._maker.is_function:
            return suspects(arguments, self._maker.fields, now)
        if sign := self._remake_sign(arguments, key):
            return [Suspect(KEY, sign)]
        if KEY in self._told:  # all of what the function makes is declared stable
            return []
        return self._taken(arguments, key, now) or self._made(arguments, key, now)

    def _taken(self, arguments: Mapping[str, Any], key: str, now: float) -> list[Suspect]:
        """Return suspects among arguments that are in the key unchanged. What is computed (a window) may be stable."""
        fields = [TemplateField(name, name, ()) for name in self._maker.takes if _stands_in(key, arguments.get(name))]
        return suspects(arguments, fields, now)

    def _made(self, arguments: Mapping[str, Any], key: str, now: float) -> list[Suspect]:
        """Return a suspect for a sign in the key itself, with the argument it came from, where one shows the same."""
        sign = text_sign(key, now)
        if sign is None:
            return []
        bringing = (name for name in self._maker.takes if text_sign(_shown(arguments.get(name)), now) == sign)
        return [Suspect(next(bringing, KEY), sign)]

    def _remake_sign(self, arguments: Mapping[str, Any], key: str) -> str | None:
        """Call the key function again: one that uses the time or random numbers returns another key."""
        if self._remakes <= 0:
            return None
        self._remakes -= 1
        try:
            same = self._maker.make(arguments) == key
        except Exception:  # noqa: BLE001  the key was made; a check must not stop the call
            same = False
        return None if same else "came out different when made twice from the same arguments"

    def _is_new(self, suspect: Suspect) -> bool:
        return suspect.path not in self._told and suspect.path.partition(".")[0] not in self._told


def _level_outside() -> int:
    """Return the `stacklevel` of the first caller that is not in this package, counted from the caller of this."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


class KeyWatch:
    """Checks the first keys of each operation that come as text, with nothing known of their parts."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}

    def look(self, operation: str, key: str, now: float, *, say: str, stacklevel: int = 2) -> None:
        left = self._left.get(operation, _LOOKS)
        if left <= 0:
            return
        sign = text_sign(key, now)
        self._left[operation] = 0 if sign else left - 1
        if sign:
            warn_unstable(operation, [Suspect(KEY, sign)], stacklevel + 1, say=say)


def _stands_in(key: str, value: Any) -> bool:
    """Return whether a value is in the key as a word of its own: attempt 1 is not in order 1001."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal, UUID, datetime)):
        return False
    words = (str(value), value.isoformat()) if isinstance(value, datetime) else (str(value),)
    return any(re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", key) for word in words if word)


def _shown(value: Any) -> str:
    try:
        return str(value)[:_LONGEST]
    except Exception:  # noqa: BLE001  the key was made; a check must not stop the call
        return ""


def _dotted(name: str) -> str:
    return name.replace("[", ".").replace("]", "")
