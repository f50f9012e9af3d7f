"""Log lines with the run that they are about: one correlation id from its first line to its last."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from ...claims.claim import shown_run
from ..engine.context import attempt_var, given, session_var

__all__ = ["FORMAT", "About", "JsonLines", "RunFilter", "TextLines", "about_var"]


FORMAT = "%(asctime)s %(levelname)s %(about)s%(message)s"
FIELDS = ("correlation", "run", "flow", "key", "step", "entry_point")


class About(Struct, frozen=True):
    """What a log line is about."""

    correlation: str = ""
    run: str = ""
    flow: str = ""
    key: str = ""
    step: str = ""
    entry_point: str = ""  # the webhook or service by which a request came in


NOTHING = About()
OURS = "twiceproof"

about_var: ContextVar[About] = ContextVar("twiceproof_about", default=NOTHING)


class RunFilter(logging.Filter):
    """Add it to a handler: every record of any logger then has all of `FIELDS`: `correlation`, `run`, `flow`, …"""

    def filter(self, record: logging.LogRecord) -> bool:
        about = _about()
        if not about.run and record.name.startswith(OURS):
            about = _from_record(record, about.correlation)
        for name in FIELDS:
            if not hasattr(record, name):
                setattr(record, name, getattr(about, name))
        record.about = _line(about)
        return True


def _from_record(record: logging.LogRecord, correlation: str) -> About:
    """Read it from the record's own fields, for a line of this package that is logged outside of its run."""
    run, flow, key = (getattr(record, name, "") for name in ("run", "flow", "key"))
    return About(correlation or run, run, flow, key)


def _about() -> About:
    session, attempt = session_var.get(), attempt_var.get()
    step = attempt.step if attempt else ""
    if session is None:
        return about_var.get() if not given() else About(given())
    claim = session.claim
    run = shown_run(claim.run)
    return About(session.work.correlation or run, run, claim.operation, claim.key, step)


def _line(about: About) -> str:
    """Return the prefix of a text line."""
    if not about.run:
        return _clean(f"[{about.correlation}] ") if about.correlation else ""
    step = f" {about.step}" if about.step else ""
    return _clean(f"[{about.correlation}] {about.flow or about.entry_point} {about.key}{step}: ")


def _clean(text: str) -> str:
    """Escape control characters: text from outside must not forge log lines."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


class TextLines(logging.Formatter):
    """Text for people. Tracebacks are indented and messages are one line, so that no part can pass for a log line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = _clean(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging calls
        return "\n".join(f"    {_clean(line)}" for line in super().formatException(ei).splitlines())


class JsonLines(logging.Formatter):
    """One JSON object per line, in ASCII: it holds no terminal escapes, and a lone surrogate does not lose the line."""

    def format(self, record: logging.LogRecord) -> str:
        about = {name: found for name in FIELDS if (found := getattr(record, name, ""))}
        shape = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **about,
            "message": record.getMessage(),
        }
        if record.exc_info:
            shape["error"] = self.formatException(record.exc_info)
        return json.dumps(shape, separators=(",", ":"), default=str)
