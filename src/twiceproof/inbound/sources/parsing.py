"""What sources share for reading bodies: strict JSON, event ids, field paths."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from ...errors import Misuse
from ...keys import composite, validate_key
from ...keys.canonical import digest, duplicate_name
from ...keys.key import is_blank
from ..source import Envelope, Event, Poison, Reading

__all__ = [
    "DEEPEST",
    "is_json",
    "json_of",
    "made_up_id",
    "media_type",
    "named",
    "object_of",
    "parse_json",
    "readable",
    "text_at",
    "value_at",
    "with_field",
]


LONGEST = 512  # bytes; a longer id is claimed by its hash


def named(*parts: Any) -> str | Poison:
    """Join parts into one event id, or return Poison if a part is missing: two events without an id would be equal."""
    texts = [part if isinstance(part, str) else str(part) if type(part) is int else "" for part in parts]
    if any(is_blank(text) for text in texts):
        return Poison("it has no id by which a redelivery could be recognised")
    try:
        if sum(map(len, texts)) > LONGEST:
            return digest(texts)
        return validate_key(texts[0]) if len(texts) == 1 else composite(*texts)
    except Misuse as error:
        return Poison(f"its id cannot be used: {error}")


def readable(items: Sequence[Event | Poison]) -> Reading:
    """Return the items, or a single Poison if none of them is an event."""
    poison = next((item for item in items if isinstance(item, Poison)), None)
    return items if poison is None or any(isinstance(item, Event) for item in items) else poison


def text_at(payload: Any, *path: str) -> str:
    """Return the text at this path, or ""."""
    for name in path:
        payload = payload.get(name) if isinstance(payload, dict) else None
    return payload if isinstance(payload, str) else ""


def made_up_id(body: object, prefix: str = "") -> str:
    """Return an id for a sample. Equal contents give equal ids, so that a sample sent twice is a duplicate."""
    text = body if isinstance(body, bytes) else digest(body).encode()
    return prefix + sha256(text).hexdigest()[:24]


def value_at(value: Any, path: str) -> Any:
    """Return the value at this path, or None."""
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def with_field(value: dict[str, Any], path: str, leaf: Any) -> dict[str, Any]:
    """Return a copy with `leaf` at this path, unless a value is there already."""
    name, _, rest = path.partition(".")
    inside = value.get(name)
    if not rest:
        return {**value, name: leaf if inside is None else inside}
    return {**value, name: with_field(inside if isinstance(inside, dict) else {}, rest, leaf)}


DEEPEST = 60  # nested containers; it must still have a canonical form when wrapped later


def media_type(envelope: Envelope) -> str:
    return envelope.header("content-type").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def json_of(envelope: Envelope) -> Any:
    """Return the JSON value of the body, or Poison."""
    kind = media_type(envelope)
    if not is_json(kind):
        return Poison(f"its content type is {kind[:80] or 'missing'!r}; have the sender use application/json")
    return parse_json(envelope.body)


def object_of(envelope: Envelope) -> dict[str, Any] | Poison:
    """Return the JSON object of the body, or Poison."""
    value = json_of(envelope)
    if isinstance(value, dict | Poison):
        return value
    return Poison(f"its body is a JSON {_kind(value)}, not an object")


def parse_json(body: bytes) -> Any:
    """Return the value, or Poison. msgspec refuses NaN, unpaired surrogates, bad UTF-8 and endless numbers."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Poison(f"its body is not JSON: {str(error)[:200]}")
    if body.count(b"[") + body.count(b"{") > DEEPEST and _is_too_deep(body):
        return Poison(f"its body is nested deeper than {DEEPEST}")
    twice = duplicate_name(body)
    return value if twice is None else Poison(f"its body has the name {twice[:80]!r} twice in one object")


def _is_too_deep(body: bytes) -> bool:
    """Formatted with one space per level, the indentation is the depth: strings contain no raw newline."""
    return b"\n" + b" " * (DEEPEST + 1) in msgspec.json.format(body, indent=1)


def _kind(value: Any) -> str:
    return {list: "array", str: "text", bool: "boolean", type(None): "null"}.get(type(value), "number")
