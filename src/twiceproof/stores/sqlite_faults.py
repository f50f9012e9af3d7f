"""What SQLite's errors mean for us: busy, full, broken, or ours to fix."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator

from ..clock import Clock, jitter
from ..errors import StoreError, StoreFull, StoreUnavailable
from .base import Disconnected

__all__ = ["begin_immediate", "held_for_too_long", "is_busy", "patiently", "translate", "translated"]

BUSY_PAUSE = 0.001
BUSY, LOCKED, READ_ONLY, IO_ERROR, CORRUPT, FULL, CANNOT_OPEN, NOT_A_DATABASE = 5, 6, 8, 10, 11, 13, 14, 26


def is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (BUSY, LOCKED)


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def begin_immediate(db: sqlite3.Connection, clock: Clock, patience: float) -> None:
    """Take the write lock now: a read that turns into a write later fails at once, whatever the time-out."""
    patiently(db, "BEGIN IMMEDIATE", clock, patience)


def patiently(db: sqlite3.Connection, sql: str, clock: Clock, patience: float) -> None:
    """Run a statement that another process may block, in short steps: SQLite's own waits grow to 0.1 s."""
    deadline = clock.monotonic() + patience
    while True:
        try:
            db.execute(sql)
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if clock.monotonic() >= deadline:
                raise held_for_too_long(patience) from error
        clock.sleep(jitter(BUSY_PAUSE))


def held_for_too_long(patience: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"Another process has held the SQLite file for {patience:g} s; nothing was written. "
        "Find it (a stopped process? a backup?), then try again."
    )


@contextlib.contextmanager
def translated(on_broken: Callable[[], None] = lambda: None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        named = translate(error)
        if isinstance(named, Disconnected):
            on_broken()
        raise named from error


def translate(error: sqlite3.Error) -> Exception:
    """A failed fsync leaves the outcome open: whoever wrote comes back with a fresh handle and looks."""
    code = _code(error)
    return Disconnected(error, sent=True) if code == IO_ERROR else _named(code, error)


def _named(code: int, error: sqlite3.Error) -> StoreError:
    if code == FULL:
        return StoreFull(
            "The disk is full; nothing was written and the file is whole. Free some space, then try again."
        )
    if code in (BUSY, LOCKED):
        return StoreUnavailable("The SQLite file is locked by another process; nothing was written. Try again.")
    if code == READ_ONLY:
        return StoreError("The SQLite file or its directory is read-only; give the process the right to write.")
    if code in (CORRUPT, NOT_A_DATABASE):
        return StoreError(f"The SQLite file is damaged ({error}); stop writing, then restore it from a backup.")
    if code == CANNOT_OPEN:
        return StoreError(f"The SQLite file cannot be opened ({error}); check that its directory exists.")
    return StoreError(f"SQLite refused: {error}. This is a bug in twiceproof or in the file; please report it.")
