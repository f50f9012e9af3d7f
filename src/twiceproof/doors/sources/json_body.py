"""Reads a body as JSON, and nothing that two readers could understand differently."""

from __future__ import annotations

from typing import Any

import msgspec

from ..envelope import Envelope
from ..json_body import name_twice
from ..source import Poison

__all__ = ["DEEPEST", "is_json", "json_of", "media_type", "object_of", "parse_json"]

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
