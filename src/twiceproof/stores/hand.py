"""The store's own thread: does what callers on an event loop must not do themselves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Hand"]

log = logging.getLogger("twiceproof")

Tasks = SimpleQueue["Callable[[], None] | None"]


class Hand:
    """One daemon thread, started when first needed, that does what it is handed, in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._mutex = threading.Lock()
        self._tasks: Tasks | None = None  # of the living thread; a thread that was told to end keeps its own
        self._thread: threading.Thread | None = None

    def do(self, task: Callable[[], None]) -> None:
        with self._mutex:
            if self._tasks is None:
                self._tasks = self._start()
            self._tasks.put(task)

    def stop(self, seconds: float | None = None) -> None:
        """Finish what was handed over, then end the thread; wait for it at most so long. Later comers start another."""
        with self._mutex:
            thread, tasks = self._thread, self._tasks
            self._thread = self._tasks = None
        if thread is None or tasks is None:
            return
        tasks.put(None)
        if thread is not threading.current_thread():
            thread.join(seconds)

    def __del__(self) -> None:
        """A store that nobody closed leaves no thread behind."""
        if self._tasks is not None:
            self._tasks.put(None)

    def _start(self) -> Tasks:
        tasks: Tasks = SimpleQueue()
        self._thread = threading.Thread(target=_run, args=(tasks,), name=self._name, daemon=True)
        self._thread.start()
        return tasks


def _run(tasks: Tasks) -> None:
    while (task := tasks.get()) is not None:
        try:
            task()
        except BaseException as error:  # if this thread ended, all who hand over later would wait for ever
            log.error("the store's thread goes on after an error that nobody was told: %r", error, exc_info=error)
        del task  # it knows the store, which need not live for as long as nothing else comes
