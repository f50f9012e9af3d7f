"""What the routes for operators look at: one server's counts, its worker, and whether it is about to leave."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

from ..app import App
from ..claims.claim import KIND, QUEUED
from ..errors import StoreError
from ..records import Address
from .metrics import Metrics
from .openapi.description import describe
from .route import Route

if TYPE_CHECKING:
    from ..flows.workers.worker import Worker

__all__ = ["Station"]

PROBE = Address("~tokens", "probe", "readyz")
PATIENCE = 2.0  # a store that takes longer does not answer
FRESH = 1.0  # seconds for which an answer is good: anybody may ask
COUNT_FRESH = 10.0
MOST_COUNTED = 1_000


class Station:
    """One per server. `draining`: send nothing new here."""

    def __init__(self, app: App, routes: tuple[Route, ...]) -> None:
        self.app = app
        self.routes = routes
        self.metrics = Metrics()
        self.worker: Worker | None = None
        self.draining = False
        self._ready = (False, 0.0)  # and until when that is believed
        self._counted_until = 0.0

    @cached_property
    def description(self) -> bytes:
        return describe(self.routes)

    async def is_ready(self) -> bool:
        """The store answers, just now."""
        now = self.app.clock.monotonic()
        if now >= self._ready[1]:
            self._ready = (await self._answers(), now + FRESH)
        return self._ready[0]

    async def _answers(self) -> bool:
        try:
            await asyncio.wait_for(self.app.store.read(PROBE).wait(), PATIENCE)
        except (StoreError, TimeoutError):
            return False
        return True

    async def text(self) -> bytes:
        """A scrape. A store that does not answer leaves the last count of what is queued."""
        now = self.app.clock.monotonic()
        if now >= self._counted_until:
            self._counted_until = now + COUNT_FRESH
            try:
                request = self.app.store.scan(KIND, state=QUEUED, limit=MOST_COUNTED)
                page = await asyncio.wait_for(request.wait(), PATIENCE)
                self.metrics.queued.set(len(page.records))
            except (StoreError, TimeoutError):
                pass
        return self.metrics.text(self.worker)
