"""What is printed: one JSON document, or tables: with rich on a terminal that has it, aligned text elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

import click

from .clean import clean, clean_lines, escaped

__all__ = ["json_text", "show_json", "show_pairs", "show_table", "show_text", "with_rich"]

Row = Sequence[Any]
COLOURS = {"ok": "green", "done": "green", "warn": "yellow", "review": "yellow", "refuse": "red", "failed": "red"}


def json_text(shape: Any) -> str:
    """Results keep their digits: they are passed through as they were stored, not parsed and written anew."""
    import msgspec

    return escaped(msgspec.json.format(msgspec.json.encode(shape, enc_hook=str), indent=2).decode())


def show_json(shape: Any) -> None:
    click.echo(json_text(shape))


def show_text(text: str = "") -> None:
    click.echo(clean_lines(text))


def show_pairs(pairs: Sequence[tuple[str, Any]]) -> None:
    """Names and values, one below the other. A value of several lines is set below its name."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        text = clean_lines(str(value))
        indented = text.replace("\n", "\n" + " " * (width + 2))
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {indented}")


def show_table(head: Sequence[str], rows: Sequence[Row]) -> None:
    cells = [[clean(cell) for cell in row] for row in rows]
    if with_rich():
        _show_rich(head, cells)
    else:
        _show_plain(head, cells)


def with_rich() -> bool:
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None


def _show_plain(head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for line in (head, *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _show_rich(head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in cells:
        # Text, not str: square brackets in a key would be read as markup.
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    Console().print(table)
