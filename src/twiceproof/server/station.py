"""What the routes for operators look at: one server's counts, its worker, and whether it is about to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..app import App
from ..clock import Clock
from ..drive import await_
from ..errors import StoreError
from ..flows.history.census import StateCounts, count_states
from ..records import Address, Found
from .metrics import Metrics
from .openapi.description import describe
from .route import Route

if TYPE_CHECKING:
    from ..flows.workers.worker import Worker

__all__ = ["PATIENCE", "Question", "Station"]

T = TypeVar("T")

PROBE = Address("~tokens", "probe", "readyz")
PATIENCE = 2.0  # a store that takes longer does not answer
FRESH = 1.0  # seconds for which an answer is good: anybody may ask
COUNT_FRESH = 15.0


class Station:
    """One per server. `draining`: send nothing new here."""

    def __init__(self, app: App, routes: tuple[Route, ...]) -> None:
        self.app = app
        self.routes = routes
        self.metrics = Metrics()
        self.worker: Worker | None = None
        self.draining = False
        self._ready = Question(self._read, app.clock, FRESH)
        self._counts = Question(self._count, app.clock, COUNT_FRESH)

    @cached_property
    def description(self) -> bytes:
        return describe(self.routes)

    async def is_ready(self) -> bool:
        """The store answers, just now."""
        return await self._ready.answer() is not None

    async def _read(self) -> Found:
        return await self.app.store.read(PROBE).wait()

    async def text(self) -> bytes:
        """A scrape. A store that does not answer leaves the last counts of what is in it."""
        counts = await self._counts.answer()
        if counts is not None:
            self.metrics.counted(counts)
        return self.metrics.text(self.worker)

    async def _count(self) -> StateCounts:
        return await await_(count_states(self.app.store))


class Question(Generic[T]):
    """Asked of the store once at a time, however many want to know, and answered within `PATIENCE`.

    A request to the store that is cancelled is waited for all the same, so that the truth about it is heard: with a
    time-out around it, the answer came when the driver gave up. Here it is left to itself, and nobody waits for it.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]], clock: Clock, fresh: float) -> None:
        self._ask = ask
        self._clock = clock
        self._fresh = fresh
        self._task: asyncio.Task[T | None] | None = None
        self._asked_at = 0.0

    async def answer(self) -> T | None:
        """None: the store has not answered, or not in time."""
        now = self._clock.monotonic()
        task = self._task
        if task is None or (task.done() and (now >= self._asked_at + self._fresh)):
            task = self._task = asyncio.create_task(self._asked())
            self._asked_at = now
        left = self._asked_at + PATIENCE - now
        if not task.done() and left > 0:
            await asyncio.wait({task}, timeout=left)
        return task.result() if task.done() and not task.cancelled() else None

    async def _asked(self) -> T | None:
        try:
            return await self._ask()
        except StoreError:
            return None
