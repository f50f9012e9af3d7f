"""Strict JSON, event ids, field paths."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from ...errors import Misuse
from ...keys import composite, validate_key
from ...keys.canonical import digest
from ...keys.key import is_blank
from ..envelope import Envelope
from ..reply import name_twice
from ..source import Event, Poison, Reading

__all__ = [
    "DEEPEST",
    "find",
    "is_json",
    "json_of",
    "made_up_id",
    "media_type",
    "named",
    "object_of",
    "parse_json",
    "planted",
    "readable",
    "text_at",
]


LONGEST = 512  # bytes; a longer id is claimed by its hash


def named(*parts: Any) -> str | Poison:
    """One id of several parts, or Poison where one is missing: two events without an id would become one."""
    texts = [part if isinstance(part, str) else str(part) if type(part) is int else "" for part in parts]
    if any(is_blank(text) for text in texts):
        return Poison("it has no id by which a second delivery could be recognised")
    try:
        if sum(map(len, texts)) > LONGEST:
            return digest(texts)
        return validate_key(texts[0]) if len(texts) == 1 else composite(*texts)
    except Misuse as error:
        return Poison(f"its id cannot be used: {error}")


def readable(items: Sequence[Event | Poison]) -> Reading:
    """One that is spoilt does not harm its neighbours; where there are none, all of it is."""
    spoilt = next((item for item in items if isinstance(item, Poison)), None)
    return items if spoilt is None or any(isinstance(item, Event) for item in items) else spoilt


def text_at(payload: Any, *path: str) -> str:
    """The text there, or ""."""
    for name in path:
        payload = payload.get(name) if isinstance(payload, dict) else None
    return payload if isinstance(payload, str) else ""


def made_up_id(body: object, prefix: str = "") -> str:
    """An id for a sample: the same for the same contents, so that a sample sent twice is a duplicate."""
    text = body if isinstance(body, bytes) else digest(body).encode()
    return prefix + sha256(text).hexdigest()[:24]


def find(value: Any, path: str) -> Any:
    """What is there, or None."""
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def planted(value: dict[str, Any], path: str, leaf: Any) -> dict[str, Any]:
    """A copy that has something there; what was there before stays."""
    name, _, rest = path.partition(".")
    inside = value.get(name)
    if not rest:
        return {**value, name: leaf if inside is None else inside}
    return {**value, name: planted(inside if isinstance(inside, dict) else {}, rest, leaf)}


DEEPEST = 60  # containers inside one another; what is wrapped around it later must still have a canonical form


def media_type(envelope: Envelope) -> str:
    return envelope.header("content-type").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def json_of(envelope: Envelope) -> Any:
    """The body's value, or Poison."""
    kind = media_type(envelope)
    if not is_json(kind):
        return Poison(f"its content type is {kind[:80] or 'missing'!r}; have the sender use application/json")
    return parse_json(envelope.body)


def object_of(envelope: Envelope) -> dict[str, Any] | Poison:
    """The same, where the sender sends one object."""
    value = json_of(envelope)
    if isinstance(value, dict | Poison):
        return value
    return Poison(f"its body is a JSON {_kind(value)}, not an object")


def parse_json(body: bytes) -> Any:
    """The value, or Poison. msgspec refuses NaN, half a surrogate pair, bad UTF-8 and numbers without an end."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Poison(f"its body is not JSON: {str(error)[:200]}")
    if body.count(b"[") + body.count(b"{") > DEEPEST and _is_too_deep(body):
        return Poison(f"its body is nested deeper than {DEEPEST}")
    twice = name_twice(body)
    return value if twice is None else Poison(f"its body has the name {twice[:80]!r} twice: which one counts?")


def _is_too_deep(body: bytes) -> bool:
    """Written with one space for each level, it is as deep as it is indented: there is no newline inside a text."""
    return b"\n" + b" " * (DEEPEST + 1) in msgspec.json.format(body, indent=1)


def _kind(value: Any) -> str:
    return {list: "array", str: "text", bool: "truth value", type(None): "null"}.get(type(value), "number")
