"""A turn: of a run's branches, one writes to the ledger at a time. The others' completions gather meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

from ..drive import Request

__all__ = ["Turn"]

if TYPE_CHECKING:
    import asyncio


class Turn:
    """First come, first served, for threads and event loops alike. Handed on without being let go in between."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[_Place] = deque()

    def take_now(self) -> bool:
        """Whether it was free. What a run that does one thing at a time always finds."""
        with self._mutex:
            free = not self._taken
            self._taken = True
            return free

    def take(self) -> Request[None]:
        return _Place(self)

    def give(self) -> None:
        with self._mutex:
            while self._waiting:
                if self._waiting.popleft().wake():
                    return
            self._taken = False

    def enter(self, place: _Place) -> bool:
        """Whether it is the caller's at once."""
        with self._mutex:
            if self._taken:
                self._waiting.append(place)
            free = not self._taken
            self._taken = True
            return free

    def leave(self, place: _Place) -> None:
        """For one who was interrupted: step out of the line, or hand on what has just been given."""
        with self._mutex:
            waiting = place in self._waiting
            if waiting:
                self._waiting.remove(place)
        if not waiting:
            self.give()


class _Place(Request[None]):
    """A place in the line."""

    __slots__ = ("_future", "_gate", "_loop", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None]

    def block(self) -> None:
        self._gate.acquire()
        if self._turn.enter(self):
            return
        try:
            self._gate.acquire()
        except BaseException:
            self._turn.leave(self)
            raise

    async def wait(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()
        if self._turn.enter(self):
            return
        try:
            await self._future
        except BaseException:
            self._turn.leave(self)
            raise

    def wake(self) -> bool:
        """False: its event loop is closed, and nobody is left to tell."""
        if self._loop is None:
            self._gate.release()
            return True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell)
            return True
        return False

    def _tell(self) -> None:
        if not self._future.done():
            self._future.set_result(None)
