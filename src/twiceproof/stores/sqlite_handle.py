"""A connection to the SQLite file, which may be left open."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from .sqlite_locks import OpenFile, opening

__all__ = ["Handle", "open_handle"]


class Handle(sqlite3.Connection):
    """Closed when nobody has it any more, without a word; never in a forked child of the process that opened it.

    `App()` at the top of a module is never closed, and need not be. From 3.13 on Python warns of such a connection,
    which fails the tests of everybody who treats warnings as errors.
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


_inherited: list[Handle] = []


def _never_close(handle: Handle) -> None:
    """A parent's transaction would be rolled back in the memory that all processes share: it is kept for ever."""
    if all(handle is not other for other in _inherited):
        _inherited.append(handle)
        with contextlib.suppress(ImportError):  # the end of the interpreter empties the list, too
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def open_handle(path: Path) -> Handle:
    """Without transactions of Python's own, for whichever thread has it."""
    file = opening(path)
    try:
        handle = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False, factory=Handle)
    except BaseException:
        if file is not None:
            file.leave()
        raise
    handle.belongs_to(file)
    return handle
