"""How far a long command is: a bar with rich, a running line without; where nobody looks, nothing or a few lines."""

from __future__ import annotations

import importlib.util
import sys
from types import TracebackType
from typing import Any

import click

__all__ = ["Progress"]

PARTS = 4  # lines for a whole, where nobody looks


class Progress:
    """`show(done, total)` as often as you like. Written to stderr, so that answers stay clean.

    `lines` asks for a line now and then also where there is no terminal: a log shall show that something goes on.
    """

    def __init__(self, name: str, *, quiet: bool = False, lines: bool = False) -> None:
        self._name = name
        self._on = not quiet and sys.stderr.isatty()
        self._lines = lines and not quiet and not self._on
        self._part = 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._on and importlib.util.find_spec("rich") is not None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=Console(stderr=True)
            )
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=None)
        return self

    def show(self, done: int, total: int | None = None, note: str = "") -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=f"{self._name} {note}".strip())
        elif self._on:
            of = f"/{total}" if total is not None else ""
            click.echo(f"\r{self._name} {done}{of} {note}\x1b[K", nl=False, err=True)
        elif self._lines and total:
            self._show_line(done, total, note)

    def _show_line(self, done: int, total: int, note: str) -> None:
        part = done * PARTS // total
        if part > self._part:
            self._part = part
            click.echo(f"{self._name} {done}/{total} {note}".rstrip(), err=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._on:
            click.echo(err=True)
