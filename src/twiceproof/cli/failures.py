"""How a command ends when it does not end well: exit codes, and errors as one line and as JSON."""

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
    OK: "fine",
    NEGATIVE: "a negative answer: no such claim or run, something was found, the doctor warns, “no” to a question",
    REFUSED: "wrong use, or refused: a bad option or key, a claim that is held, nobody to confirm it, an unsafe store",
    UNAVAILABLE: "the store cannot be used: it does not answer, is full, is of a newer release, or there is no ledger",
    INTERRUPTED: "interrupted",
    UNREAD: "nobody read the answer to its end: `| head -1` closed the pipe. What was asked for is done",
}


class NotFound(TwiceproofError):
    """There is no such claim."""


class NoAnswer(NotFound):
    """Nobody answered there."""


class NotConfirmed(Misuse):
    """Something that cannot be undone was asked for, and nobody was there to confirm it."""


def exit_code(error: TwiceproofError) -> int:
    if isinstance(error, NotFound | NoSuchWait):
        return NEGATIVE
    if isinstance(error, StoreError) and not isinstance(error, StoreUnsafe | BadWrite):
        return UNAVAILABLE
    return REFUSED


def report(error: TwiceproofError, *, url: str, as_json: bool) -> int:
    """Tell it: one line on stderr and, if asked for, a document on stdout. The answer is the exit code."""
    code = exit_code(error)
    message = redacted(" ".join([str(error), *getattr(error, "__notes__", ())]), url)
    if as_json:
        show_json(error_shape(type(error).__name__, message, code))
    click.echo(f"Error: {clean(message)}", err=True)
    return code


def report_usage(error: click.UsageError, *, as_json: bool) -> int:
    """The line that was typed is wrong: said in one line as well. Ours have a next move, click's get one."""
    command = error.ctx.command_path if error.ctx else "twiceproof"
    message = " ".join(error.format_message().split())
    if "; " not in message:
        message = f"{message}{'' if message.endswith(('.', '?')) else '.'} See how it is used: {command} --help"
    if as_json:
        show_json(error_shape("Usage", message, REFUSED))
    click.echo(f"Error: {clean(message)}", err=True)
    return REFUSED


def error_shape(kind: str, message: str, code: int) -> dict[str, dict[str, str | int]]:
    return {"error": {"type": kind, "message": message, "exit_code": code}}
