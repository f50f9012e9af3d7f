"""Work that a blocking caller does itself and an event loop leaves to the store's thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..drive import Request
from .hand import Hand

__all__ = ["Offload"]

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")


class Offload(Request[R]):
    """For scans and the like: not worth gathering, too long for an event loop."""

    __slots__ = ("_hand", "_work")

    def __init__(self, hand: Hand, work: Callable[[], R]) -> None:
        self._hand = hand
        self._work = work

    def block(self) -> R:
        return self._work()

    async def wait(self) -> R:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._hand.do(lambda: self._fill(loop, future))
        return await future

    def _fill(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[R]) -> None:
        try:
            answer = self._work()
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, who raises it
            _tell(loop, future, lambda error=error: future.set_exception(error))  # type: ignore[misc]
        else:
            _tell(loop, future, lambda: future.set_result(answer))


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[R], tell: Callable[[], None]) -> None:
    def unless_done() -> None:
        if not future.done():
            tell()

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
        loop.call_soon_threadsafe(unless_done)
