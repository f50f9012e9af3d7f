"""Work that may wait for somebody else: on a thread of its own, so that an event loop's other callers need not."""

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
        import asyncio  # whoever awaits has it; a blocking program need not load it

        return await asyncio.to_thread(self._work)
