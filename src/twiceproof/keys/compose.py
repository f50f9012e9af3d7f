"""Keys put together by hand: composites (K1), stages (K2) and time windows (K3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ..errors import KeyRefused
from .duration import seconds
from .fingerprint import digest
from .key import is_blank, validate_key
from .part import escape, escapes, part_text

__all__ = ["composite", "stage", "windowed"]

_TABLE = escapes(":")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def composite(*parts: Any) -> str:
    """`composite("shop", "order", 10492)` is `shop:order:10492`; `:` and `%` inside a part are encoded."""
    if not parts:
        raise KeyRefused("the key has no parts; write composite('shop', 'order', order_id)")
    return validate_key(":".join(_part(part, f"part {at}") for at, part in enumerate(parts, 1)))


def stage(key: str, name: Any) -> str:
    """The same thing at one stage of its life: `stage("shop:order:10492", "paid")`."""
    return validate_key(f"{validate_key(key)}:{_part(name, 'the stage')}")


def windowed(entity: Any, event: str, *, at: datetime, window: str | float | timedelta = "10m") -> str:
    """A key where there is no id: all such events of `entity` within one window of time are one.

    Windows are counted in UTC from 1970, so two events a second apart may fall on either side of an edge:
    where that matters, take a natural key. `at` is the event's own time, never the time of the attempt.
    """
    if entity is None or (isinstance(entity, str) and is_blank(entity)):
        raise KeyRefused("the entity is missing, so all entities would share this key; name it by its id")
    if at.utcoffset() is None:
        raise KeyRefused(f"at={at} has no time zone, so its window is unclear; give it tzinfo=UTC or another")
    ticks = round(seconds(window, name="window") * 1_000_000)
    if ticks < 1:
        raise KeyRefused("the window is shorter than a microsecond; use one as long as a retry may take")
    number = ((at - _EPOCH) // _TICK) // ticks
    return validate_key(f"{_part(event, 'event')}:{digest([entity, event, ticks, number])}")


def _part(value: Any, name: str) -> str:
    return escape(part_text(value, name), _TABLE)
