"""What a section found: rows of measurements, and lines with a goal."""

from __future__ import annotations

from msgspec import Struct, field

from .series import Ratio, Series, ratio

__all__ = ["Findings", "Line", "Row", "rows_beside"]


class Row(Struct, frozen=True):
    """One contender beside the one it is compared with. `per_second` is this machine's; the ratio travels."""

    part: str
    name: str
    callers: str
    per_second: float
    beside: str
    ratio: Ratio


class Line(Struct, frozen=True):
    """A figure with a goal. Without a floor and an aim it is only shown."""

    part: str
    text: str
    value: Ratio
    unit: str = "×"
    floor: float | None = None
    aim: float | None = None
    lower_is_better: bool = False

    @property
    def verdict(self) -> str:
        if self.floor is None or self.aim is None:
            return "shown"
        if self._reaches(self.aim):
            return "met" if self.aim == self.floor else "aim met"
        return "floor met" if self._reaches(self.floor) else "missed"

    def _reaches(self, mark: float) -> bool:
        return self.value.median <= mark if self.lower_is_better else self.value.median >= mark


class Findings(Struct):
    rows: list[Row] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        self.rows += other.rows
        self.lines += other.lines
        self.notes += other.notes


def rows_beside(part: str, base: Series, series: list[Series]) -> list[Row]:
    return [
        Row(part, one.name, one.callers, one.per_second, f"{base.name}, {base.callers}", ratio(one, base))
        for one in series
    ]
