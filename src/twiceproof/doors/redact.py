"""Takes declared fields out of a value before it is stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

__all__ = ["REDACTED", "redact"]

REDACTED = "[redacted]"


def redact(value: Any, paths: Collection[str]) -> Any:
    """A copy without what the dotted paths name: "card.number", and "lines.card" in every line of a list."""
    for path in paths:
        value = _without(value, path.split("."))
    return value


def _without(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_without(item, names) for item in value]
    if not isinstance(value, dict) or names[0] not in value:
        return value
    inside = REDACTED if len(names) == 1 else _without(value[names[0]], names[1:])
    return {**value, names[0]: inside}
