"""Durations as people write them: 30, 0.5, "30s", "5m", "2h", "30d", "1w", "forever"."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any, NoReturn

from ..errors import Misuse

__all__ = ["LONGEST", "UNITS", "lifetime", "seconds"]


UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_TEXT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d|w)")
LONGEST = 36_525 * 86_400.0  # 100 years: beyond it, stores' dates overflow


def seconds(value: str | float | timedelta, *, name: str, positive: bool = True) -> float:
    """Seconds. `name` is the setting a refusal speaks of; zero is legal if not `positive`."""
    found = _read(value, name)
    if not 0 <= found <= LONGEST:  # NaN fails this too
        _refuse(value, name, "is not between 0 and 100 years")
    if positive and found == 0:
        _refuse(value, name, "is zero")
    return found


def lifetime(value: str | float | timedelta, *, name: str) -> float | None:
    """Seconds, or None for "forever"."""
    return None if value == "forever" else seconds(value, name=name)


def _read(value: Any, name: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _read_text(value, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse(value, name, "is not a duration")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _read_text(value: str, name: str) -> float:
    found = _TEXT.fullmatch(value)
    if not found:
        _refuse(value, name, "has no unit" if value.isdigit() else "is not a duration")
    return float(found[1]) * UNITS[found[2]]


def _refuse(value: Any, name: str, why: str) -> NoReturn:
    shown = f"{value!r:.60}" if not isinstance(value, int) or abs(value) < 10**20 else "a huge number"
    raise Misuse(f'{name}={shown} {why}; write seconds, or "30s", "5m", "2h", "30d", "1w"', setting=name)
