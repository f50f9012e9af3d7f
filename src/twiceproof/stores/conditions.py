"""When a write fits what is there: the one rule that every store keeps, in SQL, in Lua or like this."""

from __future__ import annotations

from ..records import Check, Insert, Record, Write

__all__ = ["fits"]


def fits(write: Write, found: Record | None) -> bool:
    """Whether a write's condition holds for what is there."""
    if isinstance(write, Insert):
        return found is None
    if isinstance(write, Check) and write.absent:
        return found is None
    if found is None:
        return False
    if write.fence is not None:
        return found.fence == write.fence
    return found.version == write.version
