"""What was measured, and ratios of it: always within one round, then the median of the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import Struct

__all__ = ["Ratio", "Series", "fastest", "ratio"]


class Series(Struct, frozen=True):
    """Seconds per claim of one contender, one figure for each round."""

    name: str
    callers: str
    seconds: tuple[float, ...]

    @property
    def per_second(self) -> float:
        return 1 / statistics.median(self.seconds)


class Ratio(Struct, frozen=True):
    """The median of the rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float


def ratio(ours: Series, other: Series) -> Ratio:
    """How many times as fast `ours` is. Both were measured in the same rounds."""
    return spread([theirs / mine for mine, theirs in zip(ours.seconds, other.seconds, strict=True)])


def spread(figures: Sequence[float]) -> Ratio:
    return Ratio(statistics.median(figures), min(figures), max(figures))


def fastest(series: Sequence[Series]) -> Series:
    """The best of several ways to do one thing: the one that is fair to compare with."""
    return max(series, key=lambda one: one.per_second)
