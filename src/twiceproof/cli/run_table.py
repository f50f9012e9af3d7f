"""Runs as a table that fits into a terminal: flow and key whole, for they are typed; the reason as far as it goes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from ..flows.history.run_shape import RunShape
from .clean import clean
from .output import show_table, with_rich
from .span import span

__all__ = ["shortened", "show_rows", "show_runs"]

HEAD = ("FLOW", "KEY", "STATE", "AGE", "WHY")
LEAST = 16  # letters of a reason that are shown however wide the rest is


def show_runs(runs: Sequence[RunShape]) -> None:
    show_rows(HEAD, [(f"{run.flow}@{run.version}", run.key, run.word, span(run.age), run.reason) for run in runs])


def show_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The last column is a reason. In a pipe or a file nothing is cut: `| grep timeout` must find it."""
    columns = list(zip(head, *rows, strict=True))[:4]
    gap, edges = (3, 2) if with_rich() else (2, 0)
    others = edges + sum(gap + max(len(clean(cell)) for cell in column) for column in columns)
    room = max(LEAST, shutil.get_terminal_size().columns - others) if sys.stdout.isatty() else sys.maxsize
    show_table(head, [(*row[:4], shortened(row[4], room)) for row in rows])


def shortened(text: str, room: int) -> str:
    text = clean(text)
    return text if len(text) <= room else text[: room - 1] + "…"
