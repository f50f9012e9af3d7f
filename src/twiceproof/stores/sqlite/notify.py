"""Notices when another process wrote to the SQLite file: polls its data version while callers wait for changes."""

from __future__ import annotations

from collections.abc import Callable

from ...threads import BackgroundThread, ThreadRun

__all__ = ["UNRELIABLE", "FileWatch", "OnChange"]


EVERY = 0.05
UNRELIABLE = 0.8  # how long callers may rely on notifications that may not come
LINGER = 100  # polls without a waiting caller before it stops polling

WANTED = "wanted"

OnChange = Callable[[Callable[[str], bool]], bool]


class FileWatch:
    """One thread. SQLite cannot say what was changed, so all waiting callers are notified and look for themselves."""

    def __init__(self, version: Callable[[], tuple[int, int] | None]) -> None:
        self._version = version
        self._thread = BackgroundThread(self, FileWatch._poll, "twiceproof-watch")
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._thread.reset()
        self._on_change: OnChange | None = None
        self._seen: tuple[int, int] | None = None
        self._first = True
        self._idle = 0

    def start(self, on_change: OnChange) -> bool:
        """Whether the file is polled. False: no thread could be started; the next caller tries again."""
        try:
            if not self._thread.started:
                self._on_change, self._first = on_change, True
                self._thread.start()
            elif self._idle >= LINGER:  # it has stopped polling, or is about to
                self._thread.send(WANTED)
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        self._thread.stop()

    def _poll(self, run: ThreadRun) -> float | None:
        on_change = self._on_change
        if on_change is None:
            return None
        found, seen = self._version(), self._seen
        self._seen = seen if found is None else found
        changed = self._first or (found is not None and found != seen)  # first: changes before it began are not seen
        self._first = False
        waiting = on_change(_every_name if changed else _no_name)
        self._idle = 0 if waiting or run.message is WANTED else self._idle + 1  # its caller is about to wait
        return EVERY if self._idle <= LINGER else None


def _every_name(name: str) -> bool:
    return True


def _no_name(name: str) -> bool:
    return False
