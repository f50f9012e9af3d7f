"""Dotted paths into a payload: `data.order.id`, `lines.0.sku`."""

from __future__ import annotations

from typing import Any

__all__ = ["find", "planted"]


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
