"""What commands print: tables, JSON, progress, escaped text, times; exit codes, and errors as one line or JSON."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import click

from .. import clock
from ..errors import BadWrite, Misuse, NoSuchWait, StoreError, StoreUnsafe, TwiceproofError
from ..safe_text import escape_invisible, redacted

__all__ = [
    "EXIT_CODES",
    "INTERRUPTED",
    "NEGATIVE",
    "OK",
    "REFUSED",
    "UNAVAILABLE",
    "UNREAD",
    "NoAnswer",
    "NotConfirmed",
    "NotFound",
    "Progress",
    "clean",
    "clean_lines",
    "counted",
    "escaped",
    "exit_code",
    "json_text",
    "moment",
    "report",
    "report_usage",
    "set_up_logs",
    "show_json",
    "show_moves",
    "show_pairs",
    "show_table",
    "show_text",
    "span",
    "with_rich",
]


NOT_PLAIN = re.compile("[^\n -~]")


def clean(value: Any) -> str:
    """Return one line, with invisible characters escaped: `\\x1b`."""
    return escape_invisible(str(value))


def clean_lines(text: str) -> str:
    """Return several lines, each with invisible characters escaped."""
    return "\n".join(clean(line) for line in text.split("\n"))


def escaped(document: str) -> str:
    """Return a JSON document in plain ASCII. Outside strings JSON is ASCII anyway, so each escape is inside one."""
    return NOT_PLAIN.sub(_as_json, document)


def _as_json(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def set_up_logs(*, as_json: bool) -> None:
    """Log to stderr. Handlers that the user's module has set up stay, and get the same fields."""
    from ..flows.workers.log import FORMAT, JsonLines, RunFilter, TextLines

    root = logging.getLogger()
    if not root.handlers:
        ours = logging.StreamHandler(sys.stderr)
        ours.setFormatter(JsonLines() if as_json else TextLines(FORMAT))
        root.addHandler(ours)
        root.setLevel(logging.INFO)
        logging.getLogger("azure").setLevel(logging.WARNING)  # it logs several lines for each connection
    for handler in root.handlers:
        handler.addFilter(RunFilter())
    if logging.getLogger("twiceproof").level == logging.NOTSET:
        logging.getLogger("twiceproof").setLevel(logging.INFO)


Row = Sequence[Any]
COLOURS = {"ok": "green", "done": "green", "warn": "yellow", "review": "yellow", "refuse": "red", "failed": "red"}


def json_text(shape: Any) -> str:
    """Return an indented JSON document. Results keep their digits: they are passed through as they were stored."""
    import msgspec

    return escaped(msgspec.json.format(msgspec.json.encode(shape, enc_hook=str), indent=2).decode())


def show_json(shape: Any) -> None:
    click.echo(json_text(shape))


def show_text(text: str = "") -> None:
    click.echo(clean_lines(text))


def show_pairs(pairs: Sequence[tuple[str, Any]]) -> None:
    """Print names and values, one pair per line. The lines of a longer value are indented."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        text = clean_lines(str(value))
        indented = text.replace("\n", "\n" + " " * (width + 2))
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {indented}")


def show_moves(moves: Iterable[tuple[str, str]]) -> None:
    """Print the possible next moves: when each applies, and its command if there is one."""
    for why, move in moves:
        show_text(f"\n{why}\n  {move}" if move else f"\n{why}")


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
        # Text, not str: rich would read square brackets in a key as markup.
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    Console().print(table)


PARTS = 4  # progress lines in all, without a terminal


class Progress:
    """Progress on stderr, so that stdout has the results alone. `show(done, total)` may be called often.

    `lines` prints a few lines also without a terminal, so that a log shows that the command is not stuck.
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


UNITS = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (60 * 2, 60, "min"))


def span(seconds: float | None) -> str:
    """Return `12 s`, `4 min`, `2 h`, `30 d`; a dash for None."""
    if seconds is None:
        return "-"
    for least, unit, name in UNITS:
        if abs(seconds) >= least:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.1f} s" if abs(seconds) < 10 else f"{seconds:.0f} s"


def counted(count: int, noun: str) -> str:
    """Return `1 run`, `2 runs`, `1,000 runs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def moment(at: float | None) -> str:
    """Return `2026-03-01 09:30:00 UTC`; a dash for None."""
    return "-" if at is None else clock.moment(at)


OK, NEGATIVE, REFUSED, UNAVAILABLE, INTERRUPTED, UNREAD = 0, 1, 2, 3, 130, 141

EXIT_CODES = {
    OK: "success",
    NEGATIVE: "negative result: no such claim or run, problems found, warnings of the doctor, “no” to a question",
    REFUSED: "usage error, or refused: a bad option or key, a claim that is held, no confirmation, an unsafe store",
    UNAVAILABLE: "store unavailable: it does not respond, is full, is of a newer release, or there is no ledger",
    INTERRUPTED: "interrupted",
    UNREAD: "output closed early: `| head -1` closed the pipe, and the command itself is complete",
}


class NotFound(TwiceproofError):
    """There is no such claim, run or approval."""


class NoAnswer(NotFound):
    """No server answered at this URL."""


class NotConfirmed(Misuse):
    """The command cannot be undone, and there was no terminal on which to confirm it."""


def exit_code(error: TwiceproofError) -> int:
    if isinstance(error, NotFound | NoSuchWait):
        return NEGATIVE
    if isinstance(error, StoreError) and not isinstance(error, StoreUnsafe | BadWrite):
        return UNAVAILABLE
    return REFUSED


def report(error: TwiceproofError, *, url: str, as_json: bool) -> int:
    """Print an error as one line on stderr, with --json also as a document on stdout; return the exit code."""
    code = exit_code(error)
    message = redacted(" ".join([str(error), *getattr(error, "__notes__", ())]), url)
    if as_json:
        show_json(error_shape(type(error).__name__, message, code))
    click.echo(f"Error: {clean(message)}", err=True)
    return code


def report_usage(error: click.UsageError, *, as_json: bool) -> int:
    """Print a usage error as one line. Messages of this package end with the next move; click's get one here."""
    command = error.ctx.command_path if error.ctx else "twiceproof"
    message = " ".join(error.format_message().split())
    if "; " not in message:
        message = f"{message}{'' if message.endswith(('.', '?')) else '.'} See: {command} --help"
    if as_json:
        show_json(error_shape("Usage", message, REFUSED))
    click.echo(f"Error: {clean(message)}", err=True)
    return REFUSED


def error_shape(kind: str, message: str, code: int) -> dict[str, dict[str, str | int]]:
    return {"error": {"type": kind, "message": message, "exit_code": code}}
