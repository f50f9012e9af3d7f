"""Moments on the command line: how long ago (`2h`), or a date (`2026-03-01`, `2026-03-01T09:30`)."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from ..errors import Misuse
from ..keys.duration import seconds

__all__ = ["between", "time_options"]

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
