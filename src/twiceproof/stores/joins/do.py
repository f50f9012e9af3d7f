"""Requests to a connection that may be blocking or awaited: which of the two is seen when it answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...clock import Clock
from ...drive import Request
from ...errors import Misuse

__all__ = ["Do", "Pause"]


class Do(Request[Any]):
    """Call this. An event loop awaits the answer, if it is one to be awaited."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def block(self) -> Any:
        answer = self._work()
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise Misuse("This connection is one to be awaited; make the function under @app.transaction `async def`.")
        return answer

    async def wait(self) -> Any:
        answer = self._work()
        return await answer if inspect.isawaitable(answer) else answer


class Pause(Request[None]):
    """Let a moment go by."""

    __slots__ = ("_clock", "_seconds")

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def block(self) -> None:
        self._clock.sleep(self._seconds)

    async def wait(self) -> None:
        await self._clock.rest(self._seconds)
