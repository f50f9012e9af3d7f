"""An operation that is carried to its end, however often its caller is cancelled meanwhile."""

from __future__ import annotations

import contextlib
from typing import TypeVar

from ..drive import Operation, Request, block

__all__ = ["Insist"]

R = TypeVar("R")


class Insist(Request[R]):
    """For an event loop on a thread: tasks are cancelled again when a loop shuts down, threads are waited for."""

    __slots__ = ("_operation",)

    def __init__(self, operation: Operation[R]) -> None:
        self._operation = operation

    def block(self) -> R:
        return block(self._operation)

    async def wait(self) -> R:
        import asyncio

        try:
            work = asyncio.get_running_loop().run_in_executor(None, block, self._operation)
        except RuntimeError:  # no thread to be had: better that the loop is held up than that it is not done
            return block(self._operation)
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):  # whoever insists raises the first one again
                await asyncio.shield(work)
        return work.result()
