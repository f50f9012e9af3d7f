"""The correlation id: what an event's log lines, its runs and their outgoing calls have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import Misuse
from ..keys import validate_key
from .context import session_var

__all__ = ["correlation", "given", "giving"]

_given: ContextVar[str] = ContextVar("twiceproof_correlation", default="")


@contextmanager
def giving(correlation: str) -> Iterator[None]:
    if _of_run():
        raise Misuse("A run has its correlation id from its start; give it around the call that starts the run.")
    token = _given.set(validate_key(correlation))
    try:
        yield
    finally:
        _given.reset(token)


def given() -> str:
    """What was given around this call, if anything."""
    return _given.get()


def correlation() -> str:
    """That of the run that is calling, also for runs that it starts; outside of runs, what was given."""
    return _of_run() or _given.get()


def _of_run() -> str:
    session = session_var.get()
    if session is None or not session.open:
        return ""
    return session.work.correlation or session.claim.run
