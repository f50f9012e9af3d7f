"""The tables on the terminal: with rich if it is installed, plain otherwise."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .findings import Findings, Line, Row
from .words import goal, rate, value_with_spread

__all__ = ["show"]

NUMERIC = {"ratio", "per second here", "figure"}


def show(machine: dict[str, str], findings: Findings) -> None:
    _print_table("This machine", ("fact", "value"), list(machine.items()))
    for part in dict.fromkeys(row.part for row in findings.rows):
        rows = [row for row in findings.rows if row.part == part]
        head = ("contender", "callers", "ratio", "per second here")
        _print_table(f"{part}: beside {rows[0].beside}", head, [_row(row) for row in rows])
    _print_table("Goals", ("store", "what", "figure", "goal", "verdict"), [_line(line) for line in findings.lines])
    for note in findings.notes:
        print(note)


def _row(row: Row) -> tuple[str, ...]:
    return row.name, row.callers, value_with_spread(row.ratio, "×"), rate(row.per_second)


def _line(line: Line) -> tuple[str, ...]:
    return line.part, line.text, value_with_spread(line.value, line.unit), goal(line), line.verdict


def _print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    try:
        _print_rich(title, head, rows)
    except ImportError:
        _print_plain(title, head, rows)


def _print_rich(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in NUMERIC else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 140)  # a file has no width, and rich guesses 80
    console.print(title, style="bold", markup=False, highlight=False)  # not the table's: it would wrap at its width
    console.print(table)
    console.print()


def _print_plain(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(title)
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()
