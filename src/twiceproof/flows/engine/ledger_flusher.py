"""LedgerFlusher: writes step completions in the background. FairLock: one writer of a ledger at a time. PendingEntry:
what waits to be written.

A flow that goes straight on to its next step writes its completions along with that step, at no extra cost. The flusher
looks every few milliseconds for completions that have waited longer; it sleeps when no flow has run for a while.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ...errors import PayloadMismatch, StoreUnavailable
from ...operations import Operation, Request, block
from ...records import Insert
from ...threads import BackgroundThread, ThreadRun, at_fork

if TYPE_CHECKING:
    import asyncio

    from ...outbox.linked import LinkedMessage, LinkedMessages
    from .ledger import Entry

__all__ = [
    "FairLock",
    "LateMismatch",
    "LedgerFlusher",
    "PendingEntry",
    "first_of",
    "linked_messages",
    "place_of_failure",
    "size_of",
]


log = logging.getLogger("twiceproof")

TICK = 0.005
LINGER = 200  # empty rounds before it goes to sleep
GRACE = 1.0  # seconds that `stop` waits for a flush under way; the store waits for its commits itself


class Flushable(Protocol):
    """A ledger, as the flusher sees it."""

    @property
    def oldest(self) -> Entry | None: ...

    def flush_in_background(self) -> Operation[None]: ...


class LedgerFlusher:
    """One per app: flushes entries that have been pending for a tick. `schedule` costs an append while it is awake."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep_for = sleep
        self._thread = BackgroundThread(self, LedgerFlusher._rounds, "twiceproof-flusher", grace=GRACE)
        self._reset()
        at_fork(self, in_child=LedgerFlusher._reset)

    def _reset(self) -> None:
        self._scheduled: deque[Flushable] = deque()
        self._asleep = True
        self._stopped = False
        self._thread.reset()

    def schedule(self, ledger: Flushable) -> None:
        self._scheduled.append(ledger)
        if self._asleep:
            self._wake()

    def _wake(self) -> None:
        if self._thread.started:
            self._thread.wake()
        else:
            self._thread.start()

    def _rounds(self, run: ThreadRun) -> float | None:
        """Flush what was pending in the round before, until nothing was scheduled for a while."""
        seen: list[tuple[Flushable, Entry | None]] = []
        idle = 0
        self._asleep = False
        while idle < LINGER and not self._stopped:
            self._sleep_for(TICK)
            seen, before = self._collect(), seen
            idle = idle + 1 if not seen and not before else 0
            for ledger, entry in before:
                if entry is not None and ledger.oldest is entry:
                    self._flush(ledger)
        self._asleep = True
        return 0.0 if self._scheduled else None  # a ledger came meanwhile; later ones wake the thread

    def _collect(self) -> list[tuple[Flushable, Entry | None]]:
        return [(ledger, ledger.oldest) for ledger in _emptied(self._scheduled)]

    def _flush(self, ledger: Flushable) -> None:
        try:
            block(ledger.flush_in_background())
        except Exception as error:  # noqa: BLE001 - the run's next flush writes it again, and raises
            log.debug("a completion could not be written yet: %s", error)

    def stop(self) -> None:
        self._stopped = True
        self._thread.stop(for_good=True)


def _emptied(scheduled: deque[Flushable]) -> Iterator[Flushable]:
    while scheduled:
        yield scheduled.popleft()


class FairLock:
    """A lock for threads and tasks, first come, first served. It passes from one to the next without being released."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[_Place] = deque()

    def take_now(self) -> bool:
        """Take it if it is free. In a run without concurrent calls it always is."""
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
        """Join the queue. True: it was free, and is the caller's at once."""
        with self._mutex:
            if self._taken:
                self._waiting.append(place)
            free = not self._taken
            self._taken = True
            return free

    def leave(self, place: _Place) -> None:
        """For a waiter that was interrupted: leave the queue, or pass on the lock if it was just given."""
        with self._mutex:
            waiting = place in self._waiting
            if waiting:
                self._waiting.remove(place)
        if not waiting:
            self.give()


class _Place(Request[None]):
    """A waiter in the queue of a FairLock."""

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
        """False: its event loop is closed, so there is no waiter left."""
        if self._loop is None:
            self._gate.release()
            return True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._resolve)
            return True
        return False

    def _resolve(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


# -- what is not written yet ------------------------------------------------------------------------


class LateMismatch(PayloadMismatch):
    """Another message was sent under the key after this run had looked, and before its own was written.

    The run's message is not written, and neither is the entry of the call that sends it. The run is taken again, and
    gets the error at that call.
    """


class PendingEntry(Struct, frozen=True, gc=False):
    """With it go records of the run's space, and messages in spaces of their own."""

    entry: Entry
    pieces: tuple[Insert, ...] = ()
    messages: tuple[LinkedMessage, ...] = ()

    @classmethod
    def of(cls, entry: Entry, pieces: Sequence[Insert | LinkedMessage]) -> PendingEntry:
        own = tuple(piece for piece in pieces if isinstance(piece, Insert))
        return cls(entry, own, tuple(piece for piece in pieces if not isinstance(piece, Insert)))

    @property
    def size(self) -> int:
        """How many writes it takes. A message in a lane takes three."""
        return 1 + len(self.pieces) + 3 * len(self.messages)


def size_of(pending: list[PendingEntry]) -> int:
    return sum([one.size for one in pending])


def first_of(pending: list[PendingEntry], room: int) -> list[PendingEntry]:
    """Return as many as fit into `room`, at least one."""
    part: list[PendingEntry] = []
    for one in pending:
        room -= one.size
        if part and room < 0:
            break
        part.append(one)
    return part


def place_of_failure(pending: list[PendingEntry], error: BaseException) -> int:
    """Return how many entries come before the message that is refused, or before the first one that cannot be written
    now. 0: the error is another one.
    """
    if isinstance(error, PayloadMismatch):
        return next(place for place, one in enumerate(pending) if error.data["draft"] in one.messages)
    if isinstance(error, StoreUnavailable):
        return next(place for place, one in enumerate(pending) if one.messages)
    return 0


def linked_messages(space: str, pending: list[PendingEntry]) -> LinkedMessages | None:
    """Return the messages in spaces of their own, if there are any. Runs without them do not load the outbox."""
    drafts = [message for one in pending for message in one.messages]
    if not drafts:
        return None
    from ...outbox.linked import LinkedMessages

    return LinkedMessages(space.partition("/")[0], drafts)
