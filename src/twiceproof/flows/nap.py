"""A short wait in place, for a retry that is not worth unwinding the run."""

from __future__ import annotations

from ..clock import Clock
from ..drive import Request

__all__ = ["Nap"]


class Nap(Request[None]):
    __slots__ = ("_clock", "_seconds")

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def block(self) -> None:
        self._clock.sleep(self._seconds)

    async def wait(self) -> None:
        await self._clock.rest(self._seconds)
