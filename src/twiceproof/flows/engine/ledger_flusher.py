"""Background flush of completions; one writer at a time."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from ...operations import Operation, Request, block
from ...threads import BackgroundThread, ThreadRun, at_fork

if TYPE_CHECKING:
    import asyncio

    from .ledger import Entry

__all__ = ["FairLock", "LedgerFlusher"]


log = logging.getLogger("twiceproof")

TICK = 0.005
LINGER = 200  # empty rounds before it goes to sleep
GRACE = 1.0  # for what it is bringing when it is stopped: a commit under way is the store's to wait for


class Flushable(Protocol):
    """A ledger, as the courier sees it."""

    @property
    def oldest(self) -> Entry | None: ...

    def flush_away(self) -> Operation[None]: ...


class LedgerFlusher:
    """One per app. `mind` costs an append while it is awake."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep_for = sleep
        self._thread = BackgroundThread(self, LedgerFlusher._rounds, "twiceproof-courier", grace=GRACE)
        self._reset()
        at_fork(self, in_child=LedgerFlusher._reset)

    def _reset(self) -> None:
        self._minded: deque[Flushable] = deque()
        self._asleep = True
        self._stopped = False
        self._thread.reset()

    def mind(self, letters: Flushable) -> None:
        self._minded.append(letters)
        if self._asleep:
            self._wake()

    def _wake(self) -> None:
        if self._thread.started:
            self._thread.wake()
        else:
            self._thread.start()

    def _rounds(self, run: ThreadRun) -> float | None:
        """Flush until nothing has come for a while."""
        seen: list[tuple[Flushable, Entry | None]] = []
        idle = 0
        self._asleep = False
        while idle < LINGER and not self._stopped:
            self._sleep_for(TICK)
            seen, lying = self._collect(), seen
            idle = idle + 1 if not seen and not lying else 0
            for letters, entry in lying:
                if entry is not None and letters.oldest is entry:
                    self._bring(letters)
        self._asleep = True
        return 0.0 if self._minded else None  # a ledger came meanwhile; later ones wake the thread

    def _collect(self) -> list[tuple[Flushable, Entry | None]]:
        return [(letters, letters.oldest) for letters in _emptied(self._minded)]

    def _bring(self, letters: Flushable) -> None:
        try:
            block(letters.flush_away())
        except Exception as error:  # noqa: BLE001 - the flow writes it again itself, and hears of it
            log.debug("a completion could not be brought yet: %s", error)

    def stop(self) -> None:
        self._stopped = True
        self._thread.stop(for_good=True)


def _emptied(minded: deque[Flushable]) -> Iterator[Flushable]:
    while minded:
        yield minded.popleft()


class FairLock:
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

    def __init__(self, turn: FairLock) -> None:
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
