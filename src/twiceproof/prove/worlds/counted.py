"""Whatever a user's `world=` answers, as counts of things that can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["counted"]


def counted(value: Any) -> dict[str, int]:
    """A number counts itself, a mapping of numbers is counts already, another collection is counted item by item."""
    if isinstance(value, Mapping):
        return _of_mapping(value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return dict(Counter(item if isinstance(item, str) else repr(item) for item in value))
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    return {} if value is None else {repr(value): 1}


def _of_mapping(value: Mapping[Any, Any]) -> dict[str, int]:
    if all(isinstance(count, int) and not isinstance(count, bool) for count in value.values()):
        return {str(name): count for name, count in value.items()}
    return {f"{name}: {item!r}": 1 for name, item in value.items()}
