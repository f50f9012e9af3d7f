"""What a person gives on the command line: options that several commands share, confirmations, times, results."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from msgspec import Raw

from ..errors import Misuse
from ..keys.canonical import duplicate_name
from ..keys.duration import seconds
from .output import NEGATIVE, NotConfirmed, clean

__all__ = [
    "after_option",
    "between",
    "by_option",
    "confirm",
    "limit_option",
    "login_name",
    "note_option",
    "read_result",
    "result_option",
    "time_options",
    "yes_option",
]

F = TypeVar("F", bound=Callable[..., Any])
SINCE_HELP = "Last changed at or after this time: an age (2h, 3d) or a UTC date (2026-03-01, 2026-03-01T09:30)."
UNTIL_HELP = "Last changed before this time, in the same notation."

after_option = click.option("--after", metavar="CURSOR", help="Continue after this cursor of the previous page.")
by_option = click.option("--by", metavar="NAME", help="Name of the person who decides. Default: your login name.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation; required without a terminal.")


def limit_option(default: int = 50) -> Callable[[F], F]:
    numbers = click.IntRange(1, 10_000)
    return click.option("--limit", type=numbers, default=default, show_default=True, help="Maximum number of entries.")


def note_option(kept_with: str) -> Callable[[F], F]:
    return click.option("--note", default="", metavar="TEXT", help=f"Reason, stored with {kept_with}.")


def result_option(name: str, meaning: str, **more: Any) -> Callable[[F], F]:
    """An option that takes JSON, for `read_result`."""
    help_ = f"{meaning} as JSON; @FILE reads a file, `-` reads stdin."
    return click.option(name, metavar="JSON|@FILE|-", help=help_, **more)


def time_options(command: F) -> F:
    """Add `--since` and `--until`, for `between`."""
    until = click.option("--until", metavar="TIME", help=UNTIL_HELP)
    return click.option("--since", metavar="TIME", help=SINCE_HELP)(until(command))


def confirm(question: str, *, yes: bool) -> None:
    """Return if the person agrees, or said --yes. Without a terminal there is no one to ask: --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(
            f"Nothing was done, because there is no terminal to confirm this on: {question.rstrip('.')}. "
            "To do it without confirmation, add --yes."
        )
    if not click.confirm(clean(question), err=True):
        click.echo("Nothing was done.", err=True)
        raise click.exceptions.Exit(NEGATIVE)


def between(since: str | None, until: str | None, now: float) -> tuple[float | None, float | None]:
    """Return --since and --until as times of the store. `now` is the store's time."""
    return _read("--since", since, now), _read("--until", until, now)


def _read(name: str, text: str | None, now: float) -> float | None:
    if text is None:
        return None
    try:
        return now - seconds(text, name=name, positive=False)
    except Misuse:
        return _date(name, text)


def _date(name: str, text: str) -> float:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time; write an age (30m, 2h, 3d), or a date (2026-03-01, 2026-03-01T09:30).",
            param_hint=name,
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def read_result(given: str, option: str = "--result") -> Raw:
    """Read JSON given as an option, a file or stdin, validate it, and remove the blanks: it is stored as it is."""
    try:
        text = _result_text(given)
        msgspec.json.decode(text)
    except OSError as error:
        raise click.BadParameter(
            f"{given[1:]} cannot be read ({error.strerror}); name a JSON file.", param_hint=option
        ) from None
    except (ValueError, msgspec.DecodeError) as error:
        raise click.BadParameter(
            f"not valid JSON ({error}); a string needs quotes: '\"done\"'.", param_hint=option
        ) from None
    repeated = duplicate_name(text)
    if repeated is not None:
        raise click.BadParameter(
            f"one object has the name {repeated[:80]!r} twice; remove one of them.", param_hint=option
        )
    return Raw(msgspec.json.format(text, indent=-1))


def _result_text(given: str) -> bytes:
    if given == "-":
        return sys.stdin.buffer.read()
    return Path(given[1:]).read_bytes() if given.startswith("@") else given.encode()


def login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"
