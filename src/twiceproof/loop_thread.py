"""LoopThread: an event loop on a daemon thread, for asynchronous clients and flows beside blocking code."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from .threads import start_thread

__all__ = ["LoopThread"]

T = TypeVar("T")


class LoopThread:
    """An event loop on a daemon thread, started when first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._started())

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run it to its end, or cancel it after so many seconds and raise TimeoutError."""
        future = self.submit(work)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def close(self, grace: float | None = None) -> None:
        """Stop the loop, wait for its thread at most so long, and end the tasks that clients left behind."""
        with self._mutex:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(grace)
        if not thread.is_alive():
            _end_tasks(loop, grace)
            loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._mutex:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = start_thread(self._loop.run_forever, self._name)
            return self._loop


def _end_tasks(loop: asyncio.AbstractEventLoop, grace: float | None) -> None:
    """A task that is destroyed while it waits would be reported as an error."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        with contextlib.suppress(TimeoutError):
            loop.run_until_complete(asyncio.wait(tasks, timeout=grace))
    loop.run_until_complete(loop.shutdown_asyncgens())
