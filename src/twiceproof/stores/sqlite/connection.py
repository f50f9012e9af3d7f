"""Connections, those lent to readers, the file's identity, the write lock, error meanings."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from ...clock import Clock, jitter
from ...errors import SchemaMismatch, StoreError, StoreFull, StoreUnavailable, StoreUnsafe
from ..base import Disconnected, Finding
from .locks import OpenFile, opening

__all__ = [
    "LOOK_EVERY",
    "READERS",
    "FileIdentity",
    "QuietConnection",
    "Readers",
    "begin_immediate",
    "held_for_too_long",
    "is_busy",
    "open_handle",
    "patiently",
    "translate",
    "translated",
]


BUSY_PAUSE = 0.001
BUSY, LOCKED, READ_ONLY, IO_ERROR, CORRUPT, FULL, CANNOT_OPEN, NOT_A_DATABASE = 5, 6, 8, 10, 11, 13, 14, 26
RAISED_BY_TRIGGER = 1811  # by ours: the ledger is locked


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
    """A failed fsync leaves the outcome unknown: the caller looks again with a fresh handle."""
    if getattr(error, "sqlite_errorcode", 0) == RAISED_BY_TRIGGER:
        return SchemaMismatch(str(error))
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


LOOK_EVERY = 0.25  # seconds: a look costs a thirtieth of a commit that is not synced


class FileIdentity:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None
        self._looked_at = 0.0

    def learn(self) -> None:
        """When it is open for writing: on an overlay file system that makes another file of it."""
        self._known = self._identity()

    def check(self) -> None:
        """Before another connection to it is opened."""
        if self._known is not None and self._identity() != self._known:
            finding = Finding(
                "refuse",
                "file",
                f"{self._path} was replaced or removed while the store was open",
                "Bring it back; or settle what was under way, then open the store again.",
            )
            raise StoreUnsafe(f"{finding.found}: what is written now is lost. {finding.advice}", findings=[finding])

    def look(self, now: float) -> None:
        """Now and then."""
        if not 0.0 <= now - self._looked_at < LOOK_EVERY:
            self.check()
            self._looked_at = now  # not before: a refused file is refused the next time, too

    def _identity(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return 0, 0
        except PermissionError:  # it cannot be seen from here any more, nor that it has changed
            return self._known or (0, 0)
        return found.st_dev, found.st_ino


class QuietConnection(sqlite3.Connection):
    """Closed when it is collected, without a warning; never in a forked child of the process that opened it.

    `App()` at the top of a module is never closed, and need not be. From 3.13 on Python warns of such a connection,
    which fails the tests of users who treat warnings as errors.
    """

    _process = 0
    _file: OpenFile | None = None

    def belongs_to(self, file: OpenFile | None) -> None:
        self._process = os.getpid()
        self._file = file

    def hold(self) -> None:
        """Say to other processes that the file is in use, in a way that nothing in this one can take back."""
        if self._file is not None and not self._file.held:
            self.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            self._file.hold()

    def close(self) -> None:
        if self._process and self._process != os.getpid():
            _never_close(self)
            return
        file, self._file = self._file, None
        if file is not None:
            file.leave()
        try:
            super().close()
        finally:
            if file is not None:
                file.put_away()

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.close()


_inherited: list[QuietConnection] = []


def _never_close(handle: QuietConnection) -> None:
    """A parent's transaction would be rolled back in the memory that all processes share: it is kept for ever."""
    if all(handle is not other for other in _inherited):
        _inherited.append(handle)
        with contextlib.suppress(ImportError):  # the end of the interpreter empties the list, too
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def open_handle(path: Path) -> QuietConnection:
    """Without transactions of Python's own, for whichever thread has it."""
    file = opening(path)
    try:
        handle = sqlite3.connect(
            path, timeout=5.0, isolation_level=None, check_same_thread=False, factory=QuietConnection
        )
    except BaseException:
        if file is not None:
            file.leave()
        raise
    handle.belongs_to(file)
    return handle


READERS = 16  # with 40 threads that read at once, as fast as a connection for each of them
LOST = 1.0  # seconds: then we look for connections that an interrupt kept from being given back


class Readers:
    """A caller that comes when all are lent waits for one. The last one returned is lent first: its cache is warm."""

    def __init__(self, open_: Callable[[], QuietConnection]) -> None:
        self._open = open_
        self.reset()

    def reset(self) -> None:
        """In a forked child: what the parent had is not ours."""
        self.idle: list[QuietConnection] = []
        self._living: weakref.WeakSet[QuietConnection] = weakref.WeakSet()  # idle or lent
        self._opening = 0
        self._waiting = 0
        self._paused = self._closed = False
        self._changed = threading.Condition()

    @property
    def opened(self) -> int:
        return len(self._living) + self._opening

    def borrow(self) -> QuietConnection:
        """One that no other caller uses now. It is returned, or dropped if it failed."""
        try:
            return self.idle.pop()
        except IndexError:
            return self._wait()

    def give_back(self, db: QuietConnection) -> None:
        if self._closed:
            self.drop(db)
            return
        self.idle.append(db)
        if self._waiting:
            with self._changed:
                self._changed.notify(self._waiting if self._paused else 1)

    def adopt(self, db: QuietConnection) -> None:
        """One that was opened elsewhere."""
        self._living.add(db)
        self.give_back(db)

    def drop(self, db: QuietConnection) -> None:
        db.close()
        self._living.discard(db)
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self) -> QuietConnection:
        with self._changed:
            self._waiting += 1  # and then look at the list: a caller that returns one does it in the opposite order
            try:
                while (found := self._idle_one()) is None and not self._may_open():
                    if not self._changed.wait(LOST):
                        gc.collect()  # a connection refers to itself: nothing less gets rid of one that was lost
            finally:
                self._waiting -= 1
            if found is not None:
                return found
            self._opening += 1
        try:
            found = self._open()
            self._living.add(found)
            return found
        finally:
            self._opening -= 1

    def _idle_one(self) -> QuietConnection | None:
        try:
            return None if self._paused else self.idle.pop()
        except IndexError:
            return None

    def _may_open(self) -> bool:
        return not self._paused and self.opened < READERS

    # -- ends ------------------------------------------------------------------------------------

    def pause(self, patience: float) -> bool:
        """Lend no more, and close each one when it is given back. False: some were not, in this time."""
        with self._changed:
            self._paused = True
            self._waiting += 1
            try:
                return self._changed.wait_for(self._is_quiet, patience)
            finally:
                self._waiting -= 1

    def _is_quiet(self) -> bool:
        self._close_idle()
        return self.opened == 0

    def resume(self) -> None:
        self._paused = False
        self._tell()

    def close(self) -> None:
        """Those that are lent are closed when they come back."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while True:
            try:
                db = self.idle.pop()
            except IndexError:
                return
            db.close()
            self._living.discard(db)
