"""Canonical JSON: one text for one value, whatever its types and order; the digest of it.

| value                           | text                                                                 |
|---------------------------------|----------------------------------------------------------------------|
| str                             | NFC, UTF-8; only `"`, `\\` and control characters are escaped        |
| int, float, Decimal             | plain digits: 1, 1.0 and Decimal("1.00") are `1`                     |
| True, False, None               | `true`, `false`, `null`: True is not 1                               |
| datetime, date, time, timedelta | ISO 8601 in quotes: aware ones in UTC with `Z`                       |
| UUID, bytes, Enum               | its text, its base64, its value                                      |
| list, tuple, set                | an array; a set's elements in the order of their texts               |
| mapping, dataclass, Struct      | an object, keys by code point; keys are all text, or all int         |
| pydantic model                  | as its own JSON (`model_dump(mode="json")`), by its fields' names    |

Everything else is refused with the path to it: a guess would answer one request with another's result. A float stands
for its shortest decimal text, as in JSON and RFC 8785: `0.1`, `Decimal("0.10")` and a request body's `0.1` are equal.
"""

from __future__ import annotations

import dataclasses
import functools
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any
from unicodedata import normalize
from uuid import UUID

import msgspec

from ..errors import ValueRefused
from .models import is_model, plain_of

__all__ = [
    "DEEPEST",
    "MOST_DIGITS",
    "SCHEME",
    "NotCanonical",
    "canonical",
    "datetime_text",
    "decimal_text",
    "digest",
    "duplicate_name",
    "fields_of",
    "float_text",
    "int_text",
    "span_text",
    "time_text",
    "write",
]


DEEPEST = 100  # containers inside one another; keeps the interpreter's own stack safe
_LONGEST_PATH = 200

Writer = Callable[[Any, int], bytes]
_quote: Callable[[str], bytes] = msgspec.json.encode


def datetime_text(moment: datetime) -> str:
    """Return an aware datetime in UTC with `Z`, so that one instant has one text; a naive one as it is, without `Z`."""
    if moment.utcoffset() is None:
        return moment.replace(tzinfo=None).isoformat()
    try:
        return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        raise ValueError("in UTC it lies outside the years 1 to 9999") from None


def time_text(moment: time) -> str:
    """Return a time of day with its offset: without a date it cannot be moved to UTC."""
    text = moment.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def span_text(span: timedelta) -> str:
    """Return a duration in days and seconds of ISO 8601: `P1DT0.5S`."""
    sign, span = ("-", -span) if span < timedelta(0) else ("", span)
    seconds = str(span.seconds)
    if span.microseconds:
        seconds += f".{span.microseconds:06}".rstrip("0")
    days = f"{span.days}D" if span.days or seconds == "0" else ""
    return f"{sign}P{days}" + ("" if seconds == "0" else f"T{seconds}S")


MOST_DIGITS = 5_000  # written out, Decimal("1E+999999999") would fill the memory


def int_text(number: int) -> str:
    try:
        return int.__repr__(number)
    except ValueError:  # Python refuses to print more than 4,300 digits; Decimal does not
        return format(Decimal(number), "f")


def float_text(number: float) -> str:
    """Raises ValueError for NaN and infinity."""
    text = float.__repr__(number)  # not repr(): NumPy's floats are floats, and print as np.float64(0.1)
    if "e" in text or "n" in text:
        return decimal_text(Decimal(text))
    text = text.removesuffix(".0")
    return "0" if text == "-0" else text


def decimal_text(number: Decimal) -> str:
    """Raises ValueError for NaN and infinity, and for what would take more than MOST_DIGITS digits."""
    if not number.is_finite():
        raise ValueError("NaN and infinity are no numbers in JSON")
    if number.is_zero():
        return "0"
    if abs(number.adjusted()) > MOST_DIGITS:
        raise ValueError(f"it has more than {MOST_DIGITS} digits written out")
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


class NotCanonical(Exception):
    """Raised for a value that has no text; each container on the way up adds its step to the path."""

    def __init__(self, reason: str, move: str) -> None:
        self.reason, self.move = reason, move
        self.steps: list[str | int] = []

    def path(self) -> str:
        text = "".join(_step(step) for step in reversed(self.steps)).removeprefix(".") or "the value"
        return text if len(text) <= _LONGEST_PATH else text[:_LONGEST_PATH] + "…"

    def next_move(self) -> str:
        """Return the advice, with the name to leave out where `ignore=` can name it."""
        names = [step for step in reversed(self.steps) if isinstance(step, str) and step.isidentifier()]
        return self.move.replace('"name"', f'"{".".join(names)}"') if len(names) == len(self.steps) > 0 else self.move


def _step(step: str | int) -> str:
    if isinstance(step, str) and step.isidentifier():
        return "." + step
    return f"[{step!a}]"  # ASCII, so that a lone surrogate in a key does not break the message too


def write(value: Any, room: int) -> bytes:
    """Return the text of a value with at most `room` levels of containers."""
    kind: type = type(value)
    return (_WRITERS.get(kind) or _writer_for(kind))(value, room)


@functools.lru_cache(maxsize=1024)
def _writer_for(kind: type) -> Writer:
    for base in kind.__mro__:
        if base in _WRITERS:
            return _WRITERS[base]
    if issubclass(kind, Mapping):
        return _mapping
    if issubclass(kind, AbstractSet):
        return _set
    if is_model(kind):
        return _model
    return _fields if dataclasses.is_dataclass(kind) else _unknown


def _model(value: Any, room: int) -> bytes:
    """Write a model as pydantic does: two models are the same request if their JSON is."""
    try:
        plain = plain_of(value)
    except ValueError as why:
        raise NotCanonical(
            f"has no JSON form: {why}", 'leave it out with ignore=("name",), or pass plain data'
        ) from None
    return write(plain, room)


def _unknown(value: Any, room: int) -> bytes:
    raise NotCanonical(
        f"is of type {type(value).__qualname__}, which has no JSON form",
        'leave it out with ignore=("name",), or pass plain data: text, numbers, dicts, lists, dataclasses',
    )


def _text(value: str, room: int) -> bytes:
    # str.__str__, not str(): an Enum that is also a str would give its name
    plain = value if type(value) is str else str.__str__(value)
    try:
        return _quote(plain if plain.isascii() else normalize("NFC", plain))
    except UnicodeEncodeError:
        move = "decode the text with its right encoding, or errors='replace'"
        raise NotCanonical("holds half a surrogate pair, which is no text", move) from None


def _atom(text: Callable[[Any], str]) -> Writer:
    """A number or a moment; `text` says with ValueError why there is none."""

    def write_atom(value: Any, room: int) -> bytes:
        try:
            return text(value).encode()
        except ValueError as why:
            reason = f"is of type {type(value).__qualname__}, without JSON form: {why}"
            raise NotCanonical(reason, "pass it as text, or None") from None

    return write_atom


def _quoted(text: Callable[[Any], str]) -> Writer:
    return _atom(lambda value: f'"{text(value)}"')


def _array(items: Iterable[Any], room: int) -> bytes:
    return b"[" + b",".join(_elements(items, room)) + b"]"


def _set(items: Iterable[Any], room: int) -> bytes:
    return b"[" + b",".join(sorted(_elements(items, room))) + b"]"


def _elements(items: Iterable[Any], room: int) -> list[bytes]:
    room = _enter(room)
    written: list[bytes] = []
    try:
        for item in items:
            written.append(write(item, room))  # its length is the index of a refused item
    except NotCanonical as refused:
        refused.steps.append(len(written))
        raise
    return written


def _mapping(mapping: Mapping[Any, Any], room: int) -> bytes:
    room = _enter(room)
    names = _names(mapping)
    return b"{" + b",".join(_entry(name, mapping[names[name]], room) for name in sorted(names)) + b"}"


def _entry(name: str, value: Any, room: int) -> bytes:
    try:
        return _text(name, 0) + b":" + write(value, room)
    except NotCanonical as refused:
        refused.steps.append(name)
        raise


def _names(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Return each key by its text."""
    # {1: a, "1": b} would become one object with two equal names: all text or all int cannot collide.
    name_of = _int_name if mapping and all(type(key) is int for key in mapping) else _text_name
    names: dict[str, Any] = {}
    for key in mapping:
        name = name_of(key)
        if name in names:
            raise NotCanonical(f"has two keys that are both {name!a} in Unicode's normal form (NFC)", "keep one")
        names[name] = key
    return names


def _int_name(key: int) -> str:
    return int_text(key)


def _text_name(key: Any) -> str:
    if not isinstance(key, str):
        raise NotCanonical(f"has a key of type {type(key).__qualname__}", "make its keys text, or all of them int")
    plain = str.__str__(key)
    return plain if plain.isascii() else normalize("NFC", plain)


def _fields(value: Any, room: int) -> bytes:
    return _mapping(fields_of(value), room)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass or Struct by their JSON names, with a Struct's tag."""
    if not isinstance(value, msgspec.Struct):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    found = {name: getattr(value, field) for name, field in names}
    tag = {value.__struct_config__.tag_field: value.__struct_config__.tag}
    return {name: item for name, item in (tag | found).items() if name and item is not msgspec.UNSET}


def _enter(room: int) -> int:
    if room <= 0:
        raise NotCanonical(f"is nested deeper than {DEEPEST} levels, or contains itself", "pass flatter data")
    return room - 1


_WRITERS: dict[type, Writer] = {
    str: _text,
    bool: lambda value, room: b"true" if value else b"false",
    type(None): lambda value, room: b"null",
    int: _atom(int_text),
    float: _atom(float_text),
    Decimal: _atom(decimal_text),
    datetime: _quoted(datetime_text),
    date: _quoted(date.isoformat),
    time: _quoted(time_text),
    timedelta: _quoted(span_text),
    UUID: _quoted(str),
    bytes: _quoted(lambda value: b64encode(value).decode()),
    bytearray: _quoted(lambda value: b64encode(value).decode()),
    memoryview: _quoted(lambda value: b64encode(value).decode()),
    Enum: lambda value, room: write(value.value, room),
    dict: _mapping,
    list: _array,
    tuple: _array,
    set: _set,
    frozenset: _set,
    msgspec.Struct: _fields,
}


_encode: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode
SCHEME = "1:"  # of digests: a later release that writes values differently must not read old hashes as mismatches
_ATOMS = frozenset((int, bool, type(None)))  # whose text msgspec writes as we do


def canonical(value: Any) -> bytes:
    """Return the value's one JSON text. Raises ValueRefused, with the path, for what has none."""
    return canonical_fast(value) or canonical_slowly(value)


def digest(value: Any) -> str:
    """Return the hash of a value's canonical JSON, with the scheme by which it was made."""
    return SCHEME + sha256(canonical(value)).hexdigest()


def canonical_fast(value: Any) -> bytes | None:
    """Return what msgspec writes, where that is the same; None where it may differ."""
    kind = type(value)
    if not (kind is dict or kind is list) or not _is_plain(value, DEEPEST):
        return None
    try:
        text = _encode(value)
    except (TypeError, ValueError, OverflowError):
        return None  # a key that is no text, half a surrogate pair, an int of thousands of digits
    return text if text.isascii() else None


def canonical_slowly(value: Any) -> bytes:
    """Return the text of any value. `canonical` must never differ from it by a byte."""
    try:
        return write(value, DEEPEST)
    except NotCanonical as refused:
        path = refused.path()
        raise ValueRefused(f"{path} {refused.reason}; {refused.next_move()}", path=path) from refused.__cause__


def _is_plain(part: Any, room: int) -> bool:
    """Return whether msgspec writes this dict or list as we do, as long as all its text is ASCII."""
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
    """Return whether msgspec writes a float as we do: no exponent, no trailing .0, no NaN."""
    return 1e-4 <= abs(value) < 1e15 and value % 1 != 0


# -- names in JSON ------------------------------------------------------------------------------


def duplicate_name(text: str | bytes) -> str | None:
    """Return a name that occurs twice in one object, or None.

    Some parsers take the first of them and some the last, so the checked value may not be the one acted on.
    """
    try:  # fast path: encoded again, it is the same text unless it is spelled differently or has a duplicate
        if msgspec.json.encode(msgspec.json.decode(text)) == msgspec.json.format(_bytes(text), indent=-1):
            return None
    except (msgspec.DecodeError, RecursionError):  # an endless number; nested too deeply
        pass
    import json  # rarely needed

    try:
        json.loads(text, object_pairs_hook=_refuse_repeats, parse_int=str)
    except _DuplicateName as found:
        return str(found)
    except RecursionError:
        return None
    return None


class _DuplicateName(Exception):
    pass


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _DuplicateName(name)
        seen.add(name)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
