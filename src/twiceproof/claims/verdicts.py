"""What an error says about the work: the user's own words about exceptions, and then what is known of clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any, get_args

from ..errors import Misuse
from .said_by import said_by
from .verdict import Verdict, judge, worst

__all__ = ["Judge", "NotDoneErrors", "Verdicts", "as_not_done", "retry_after"]

NotDoneErrors = type[BaseException] | tuple[type[BaseException], ...]
Judge = Callable[[Any], Verdict | None]
LONGEST = 7 * 86_400.0  # a Retry-After beyond a week is a mistake of the other side


class Verdicts:
    """The user's own words first, the latest first; then what is known of sockets, HTTP clients and `NotDone`."""

    def __init__(self) -> None:
        self._known: list[tuple[type[BaseException], Judge]] = []

    def add(self, kind: type[BaseException], verdict: Verdict | Judge) -> None:
        """`verdict` is one of the four words, or a function of the error that returns one, or None."""
        _refuse_no_error(kind)
        if not callable(verdict) and verdict not in get_args(Verdict):
            raise Misuse(f'{verdict!r} is not a verdict; say "clean", "final", "ambiguous" or "other".')
        word = verdict
        self._known.insert(0, (kind, word if callable(word) else lambda error: word))

    def judge(self, error: BaseException, not_done: tuple[type[BaseException], ...] = ()) -> Verdict:
        """`not_done`: what this one operation declares to mean that nothing was done."""
        if isinstance(error, not_done):
            return "clean"
        for kind, word in self._known:
            found = word(error) if isinstance(error, kind) else None
            if found is not None:
                return found
        if isinstance(error, BaseExceptionGroup):  # a task group's: the user's words are about what is in it
            return worst({self.judge(one, not_done) for one in error.exceptions})
        return judge(error)


def as_not_done(given: NotDoneErrors) -> tuple[type[BaseException], ...]:
    """What stands in `not_done=`, checked where it is declared. An interrupt may come at any moment."""
    kinds = given if isinstance(given, tuple) else (given,)
    for kind in kinds:
        _refuse_no_error(kind)
        if not issubclass(kind, Exception):
            raise Misuse(
                f"not_done={kind.__name__}: it may come after the work was done; name what your client raises."
            )
    return kinds


def _refuse_no_error(kind: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise Misuse(f"{kind!r} is not an exception class; name the class that your client raises.")


def retry_after(error: BaseException, now: float) -> float | None:
    """When the other side wants to be asked again, in seconds: an attribute of the error, or the HTTP header."""
    value = said_by(error, "retry_after")
    if value is None:
        value = _header(said_by(error, "response")) or _header(error)
    return None if value is None else _seconds(value, now)


def _header(answer: object) -> object:
    headers = said_by(answer, "headers")
    if headers is None or not (isinstance(headers, Mapping) or hasattr(headers, "get")):
        return None
    found: object = headers.get("Retry-After") or headers.get("retry-after")
    return found


def _seconds(value: object, now: float) -> float | None:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = _until(str(value), now)
    return min(max(found, 0.0), LONGEST) if math.isfinite(found) else None


def _until(date: str, now: float) -> float:
    from email.utils import parsedate_to_datetime  # costs milliseconds, and is seldom needed

    try:
        when = parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return math.nan
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now
