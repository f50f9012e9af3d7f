"""Exit codes, the errors of the command line itself, and how errors are reported: one line, or JSON."""

from __future__ import annotations

import click

from ..errors import BadWrite, Misuse, NoSuchWait, StoreError, StoreUnsafe, TwiceproofError
from ..safe_text import redacted
from .output import clean, show_json

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
    "exit_code",
    "report",
    "report_usage",
]


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
