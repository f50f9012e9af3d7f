"""Work on files and foreign services: done on the spot by a blocking caller, on a thread for an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..drive import Request

__all__ = ["Aside"]

R = TypeVar("R")


class Aside(Request[R]):
    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], R]) -> None:
        self._work = work

    def block(self) -> R:
        return self._work()

    async def wait(self) -> R:
        import asyncio

        return await asyncio.to_thread(self._work)
