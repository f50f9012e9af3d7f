"""Confirmations, times and results given on the command line."""

from __future__ import annotations

import getpass
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from msgspec import Raw

from ..errors import Misuse
from ..inbound.reply import duplicate_name
from ..keys.duration import seconds
from .failures import NEGATIVE, NotConfirmed
from .output import clean

__all__ = ["between", "confirm", "login_name", "read_result", "time_options"]


def confirm(question: str, *, yes: bool) -> None:
    """Returns if it may be done. A script cannot be asked: it has to say --yes itself."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed("This cannot be undone and there is no terminal to ask on; nothing was done. Say --yes.")
    if not click.confirm(clean(question), err=True):
        click.echo("Nothing was done.", err=True)
        raise click.exceptions.Exit(NEGATIVE)


WHEN = "TIME"
SINCE_HELP = "Last changed at or after this: so long ago (2h, 3d), or a date (2026-03-01, 2026-03-01T09:30), in UTC."
UNTIL_HELP = "Last changed before this, written the same way."

time_options = (
    click.option("--since", metavar=WHEN, help=SINCE_HELP),
    click.option("--until", metavar=WHEN, help=UNTIL_HELP),
)


def between(since: str | None, until: str | None, now: float) -> tuple[float | None, float | None]:
    """As the store's times. `now` is the store's, too."""
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
            f"{text!r} is no time; write how long ago (30m, 2h, 3d), or a date (2026-03-01, 2026-03-01T09:30).",
            param_hint=name,
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def read_result(given: str, option: str = "--result") -> Raw:
    """Checked, and without the blanks between: what is stored is what every replay will say."""
    try:
        text = _result_text(given)
        msgspec.json.decode(text)
    except OSError as error:
        raise click.BadParameter(f"{given[1:]} cannot be read ({error.strerror}).", param_hint=option) from None
    except (ValueError, msgspec.DecodeError) as error:
        raise click.BadParameter(
            f"this is not JSON: {error}. Text needs quotes: '\"done\"'.", param_hint=option
        ) from None
    twice = duplicate_name(text)
    if twice is not None:
        raise click.BadParameter(f"it has the name {twice[:80]!r} twice in one object.", param_hint=option)
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
