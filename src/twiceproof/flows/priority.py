"""Priority: which flows a worker asks for first."""

from __future__ import annotations

from typing import Literal, get_args

from ..errors import Misuse

__all__ = ["HIGH", "LOW", "NORMAL", "Priority", "rank_of"]

Priority = Literal["high", "normal", "low"]
HIGH, NORMAL, LOW = 0, 1, 2


def rank_of(priority: Priority) -> int:
    if priority not in get_args(Priority):
        raise Misuse(f"priority={priority!r} means nothing here; say one of {', '.join(get_args(Priority))}.")
    return get_args(Priority).index(priority)
