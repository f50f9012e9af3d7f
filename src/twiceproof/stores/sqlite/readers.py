"""The reading connections of a SQLite store: a bounded number, lent to one caller each."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

from .connection import QuietConnection

__all__ = ["READERS", "Readers"]


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
