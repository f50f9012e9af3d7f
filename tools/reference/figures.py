"""The goals of the bench, and the figures of its last whole run, as the page about it shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from bench.findings import Line
from bench.goals import GOALS, Goal
from bench.words import goal, value_with_spread

from .table import table

__all__ = ["figures"]

LATEST = Path(__file__).parents[2] / "bench/results/latest.json"


def figures(_: str) -> list[str]:
    """The goals that the last whole run has a figure for; below, those without one."""
    run = json.loads(LATEST.read_text("utf-8"))
    lines = [line for line in msgspec.convert(run["lines"], list[Line]) if line.floor is not None]
    machine, day = run["machine"], run["taken_at"][:10]
    rows = [(one.part, one.text, goal(one), value_with_spread(one.value, one.unit), one.verdict) for one in lines]
    return [
        f"The last whole run, of {day}: {run['rounds']} rounds on {machine['cpu']}, {machine['system']}.",
        "",
        *table(("where", "what", "goal", "median (lowest to highest)", ""), rows),
        *_without_figure(lines),
    ]


def _without_figure(lines: list[Line]) -> list[str]:
    """The goals that no line of the run was measured for. Several stores may share one."""
    rows = [
        (wanted.text, _shown(wanted))
        for wanted in dict.fromkeys(GOALS.values())
        if wanted.floor is not None
        and not any(line.text.endswith(wanted.text) and _marks(line) == _marks(wanted) for line in lines)
    ]
    return (
        [
            "",
            "Goals without a figure in that run, because they are newer or their contender was not installed:",
            "",
            *table(("what", "goal"), rows),
        ]
        if rows
        else []
    )


def _marks(one: Line | Goal) -> tuple[float | None, float | None]:
    return one.floor, one.aim


def _shown(wanted: Goal) -> str:
    no_value: Any = None
    return goal(Line("", wanted.text, no_value, wanted.unit, wanted.floor, wanted.aim, wanted.lower_is_better))
