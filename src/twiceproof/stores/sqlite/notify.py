"""Tells when another process wrote to the SQLite file: a cheap look at its data version, only while somebody waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["UNHEARD", "FileWatch"]


EVERY = 0.05
UNHEARD = 0.8  # how long to rely on hearing where nobody looks
LINGER = 100  # looks with nobody waiting before it goes to sleep

Heard = Callable[[Callable[[str], bool]], bool]


class FileWatch:
    """One thread. SQLite cannot say what was changed, so everybody who waits looks."""

    def __init__(self, version: Callable[[], tuple[int, int] | None]) -> None:
        self._version = version
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._mutex = threading.Lock()
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, heard: Heard) -> bool:
        """Whether we look. False: no thread was to be had; the next one tries again."""
        self._wanted.set()
        if self._thread is not None:
            return True
        with self._mutex:
            if self._thread is None:
                self._stopped.clear()
                thread = threading.Thread(target=self._run, args=(heard,), name="twiceproof-watch", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
            return True

    def close(self) -> None:
        with self._mutex:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._stopped.set()
            self._wanted.set()
            thread.join()

    def _run(self, heard: Heard) -> None:
        seen, idle = self._version(), 0
        heard(_everyone)  # what changed before we looked is not told again
        while not self._stopped.wait(EVERY):
            found = self._version()
            changed = found is not None and found != seen
            seen = seen if found is None else found
            idle = 0 if heard(_everyone if changed else _nobody) else idle + 1
            if idle > LINGER:
                self._sleep()
                idle = 0

    def _sleep(self) -> None:
        self._wanted.clear()
        self._wanted.wait()


def _everyone(place: str) -> bool:
    return True


def _nobody(place: str) -> bool:
    return False
