"""How figures are written, in the table and in the chart."""

from __future__ import annotations

from .findings import Line
from .series import Ratio

__all__ = ["figure", "goal", "rate", "value", "value_with_spread"]


def figure(number: float) -> str:
    """Three digits, no more: the fourth is noise."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def rate(per_second: float) -> str:
    return f"{float(f'{per_second:.3g}'):,.0f}"


def value(number: float, unit: str) -> str:
    return f"{figure(number)} {unit}" if unit.isalpha() else figure(number) + unit


def value_with_spread(ratio: Ratio, unit: str) -> str:
    text = value(ratio.median, unit)
    return text if ratio.low == ratio.high else f"{text} ({figure(ratio.low)} to {figure(ratio.high)})"


def goal(line: Line) -> str:
    if line.floor is None or line.aim is None:
        return ""
    if line.lower_is_better:
        return f"at most {line.floor:,g} {line.unit}".rstrip(" ×")
    floor = _mark(line.floor, line.unit)
    return floor if line.aim == line.floor else f"{floor}, aim {_mark(line.aim, line.unit)}"


def _mark(number: float, unit: str) -> str:
    return f"{number:,g}{unit}"
