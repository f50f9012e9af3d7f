"""The store's own thread: does what callers on an event loop must not do themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Hand"]


class Hand:
    """One daemon thread, started when first needed, that does what it is handed, in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def do(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)
        if self._thread is None:
            self._ensure()

    def stop(self) -> None:
        """Finish what was handed over, then end the thread."""
        with self._start:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._tasks.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _ensure(self) -> None:
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
