"""The places of a worker: so many things at once, blocking ones on threads, awaiting ones on one event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from ...operations import Operation, await_, block

__all__ = ["RunExecutor"]


log = logging.getLogger("twiceproof.work")


class RunExecutor:
    """`freed` is called when a place becomes free. Threads are daemons: a step without end cannot keep the process."""

    def __init__(self, count: int, freed: Callable[[], None]) -> None:
        self._count = count
        self._freed = freed
        self._mutex = threading.Lock()
        self._taken = 0
        self._blocking = 0  # of these, on threads
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[Operation[None] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looper: threading.Thread | None = None

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def free(self) -> int:
        return self._count - self._taken

    def fill(self, operation: Operation[None], *, awaited: bool) -> None:
        with self._mutex:
            self._taken += 1
            self._blocking += not awaited
        if awaited:
            asyncio.run_coroutine_threadsafe(self._await(operation), self._running_loop())
        else:
            if self._blocking > len(self._threads):
                self._threads.append(_started(self._serve, f"twiceproof-work-{len(self._threads) + 1}"))
            self._work.put(operation)

    def _serve(self) -> None:
        while (operation := self._work.get()) is not None:
            try:
                block(operation)
            except BaseException:  # one bad run must not take its place along
                log.exception("something broke out of a run")
            finally:
                self._leave(blocking=True)

    async def _await(self, operation: Operation[None]) -> None:
        try:
            await await_(operation)
        except BaseException:  # as above
            log.exception("something broke out of a run")
        finally:
            self._leave(blocking=False)

    def _leave(self, *, blocking: bool) -> None:
        with self._mutex:
            self._taken -= 1
            self._blocking -= blocking
        self._freed()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._looper = _started(self._loop.run_forever, "twiceproof-work-loop")
        return self._loop

    def close(self) -> None:
        """When all places are free. Whatever is still at work goes down with the process."""
        if self._taken:
            return
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        if self._loop is not None and self._looper is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._looper.join()
            self._loop.close()
        self._threads, self._loop = [], None


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
