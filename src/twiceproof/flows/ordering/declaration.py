"""`by(object=…, version=…)`: which object an event is about, and which version of it; how versions compare.

| compare     | takes                                                | order                         |
|-------------|------------------------------------------------------|-------------------------------|
| `"integer"` | int; text of digits, if declared                     | by number                     |
| `"time"`    | aware datetime; ISO 8601 text with a zone            | by instant, to the last digit |
| `"date"`    | date; `2026-05-01`                                   | by day                        |
| `"text"`    | any other text, only if declared: ULIDs, fixed width | by code point                 |

Without a declaration the kind is recognised from the value; text that could be read in two ways is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from inspect import Signature
from typing import Any, Literal, NoReturn, get_args
from unicodedata import normalize

from msgspec import Struct

from ...claims.policy import Duration
from ...errors import KeyRefused, Misuse
from ...keys import KeyMaker, Template, lifetime, seconds
from ...keys.key import is_blank
from ..step import called_with

__all__ = ["COMPARES", "By", "Compare", "Gap", "OrderFields", "Version", "by", "read_version"]


Compare = Literal["integer", "time", "date", "text"]
COMPARES: tuple[Compare, ...] = ("integer", "time", "date", "text")
LONGEST = 128

_DIGITS = re.compile(r"-?[0-9]{1,40}", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
# The fraction is kept apart: Python cuts it off after six digits, and two versions would become one.
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.([0-9]{1,18}))?(Z|z|[+-][0-9]{2}:?[0-9]{2})",
    re.ASCII,
)


class Version(Struct, frozen=True):
    """A version. `text` is canonical: two versions of one kind are equal if their texts are."""

    kind: Compare
    text: str

    @property
    def place(self) -> tuple[Any, ...]:
        """The value that is compared, within one kind."""
        if self.kind == "integer":
            return (int(self.text),)
        if self.kind == "time":
            whole, _, fraction = self.text.removesuffix("Z").partition(".")
            return whole, fraction  # digits of a fraction compare as text: .5 is after .499
        return (self.text,)

    @property
    def number(self) -> int | None:
        return int(self.text) if self.kind == "integer" else None


def read_version(value: Any, compare: Compare | None, field: str) -> Version:
    """Read a version. Raises KeyRefused, with what to declare, for a value that has no order."""
    kind = compare or _seen(value, field)
    text = _READERS[kind](value)
    if text is None:
        _refuse(value, field, f"cannot be compared as {kind}")
    return Version(kind, text)


def _seen(value: Any, field: str) -> Compare:
    """The kind of a value, if it is unambiguous."""
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
    if found is None:  # also a time without a zone: one hour a year would be out of order
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


Gap = Literal["apply", "park"]


class By(Struct, frozen=True):
    """The arguments of `by`, checked as far as possible without the function."""

    object: str | Callable[..., str]
    version: str | Callable[..., Any]
    compare: Compare | None
    gap: Gap
    patience: float
    first: int | None
    fetch: Callable[..., Any] | None
    keep: float | None


def by(
    object: str | Callable[..., str],  # noqa: A002 - the users' word
    version: str | Callable[..., Any],
    *,
    compare: Compare | None = None,
    gap: Gap = "apply",
    patience: Duration = "30s",
    first: int | None = None,
    fetch: Callable[..., Any] | None = None,
    keep: Duration = "forever",
) -> By:
    """Of each `object`, apply only newer versions: `order=by(object="{order[id]}", version="{order[updated_at]}")`.

    `compare` says how versions compare, where their values do not. `gap="park"` (integers) waits up to `patience` for
    the versions in between; then `fetch`, if given, is asked for the current state, which takes the event's place.
    `first` is the version that an object begins with. `keep` is how long the newest version is remembered.
    """
    if compare is not None and compare not in COMPARES:
        raise Misuse(f"compare={compare!r} is not valid; use one of {', '.join(COMPARES)}.")
    if gap not in get_args(Gap):
        raise Misuse(f"gap={gap!r} is not valid; use one of {', '.join(get_args(Gap))}.")
    if gap == "apply" and (fetch is not None or first is not None):
        raise Misuse('fetch= and first= are about gaps, and gap="apply" jumps over them; say gap="park".')
    if gap == "park" and compare not in (None, "integer"):
        raise Misuse(f'gap="park" needs integers: other versions have no visible gaps; leave out compare={compare!r}.')
    if first is not None and (isinstance(first, bool) or not isinstance(first, int)):
        raise Misuse(f"first={first!r} is not an integer; give the version that an object begins with.")
    return By(
        object,
        version,
        "integer" if gap == "park" else compare,
        gap,
        seconds(patience, name="patience", positive=False),
        first,
        fetch,
        lifetime(keep, name="keep"),
    )


class OrderFields:
    """A declaration bound to a function: which object a call is about, and which version of it."""

    def __init__(self, told: By, signature: Signature) -> None:
        if not isinstance(told, By):
            raise Misuse('order= takes by(object="{order[id]}", version="{order[updated_at]}"); write it so.')
        self.told = told
        self._object = KeyMaker(told.object, signature)
        self._find, self.argument = _finder(told, signature)

    def object(self, arguments: Mapping[str, Any]) -> str:
        return self._object.make(arguments)

    def version(self, arguments: Mapping[str, Any]) -> Version:
        return read_version(self._find(arguments), self.told.compare, self._field)

    @property
    def _field(self) -> str:
        return self.told.version if isinstance(self.told.version, str) else "of the function"


def _finder(told: By, signature: Signature) -> tuple[Callable[[Mapping[str, Any]], Any], str]:
    """How the version is found, and the argument that contains it: the one that `fetch` replaces."""
    if isinstance(told.version, str):
        fields = Template(told.version).fields
        if len(fields) != 1 or told.version != f"{{{fields[0].text}}}":
            raise Misuse(f'version={told.version!r} must be one field and nothing else, like "{{order[version]}}".')
        if fields[0].name not in signature.parameters:
            raise Misuse(f"version={told.version!r} looks into {fields[0].name}, which the function does not take.")
        return fields[0].find, fields[0].name
    if not callable(told.version) or inspect.iscoroutinefunction(told.version):
        raise Misuse('version= is a field like "{order[version]}", or a plain function of the arguments.')
    if told.fetch is not None:
        raise Misuse("fetch= must know which argument it stands in for; write version= as a field.")
    function = told.version
    return lambda arguments: _called(function, arguments), ""


def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**called_with(function, dict(arguments)))
    except (LookupError, AttributeError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise KeyRefused(f"the version could not be had ({why}); use one that every event has") from error
