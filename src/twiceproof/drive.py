"""Runs the core's operations, blocking or awaiting: one core, two drivers.

An operation is a generator that yields requests. A request can be answered by blocking the calling
thread (`block`) or by awaiting (`wait`). Inside an operation, `answer = yield from request`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Call", "Inline", "Operation", "Request", "await_", "block"]

R = TypeVar("R")


class Request(Generic[R]):
    """Something an operation needs done. Each request is used once."""

    __slots__ = ()

    def block(self) -> R:
        raise NotImplementedError

    async def wait(self) -> R:
        raise NotImplementedError

    def __iter__(self) -> Generator[Request[Any], Any, R]:
        answer: R = yield self
        return answer


Operation = Generator[Request[Any], Any, R]


class Inline(Request[R]):
    """Work so short that even an event loop does it on the spot."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], R]) -> None:
        self._work = work

    def block(self) -> R:
        return self._work()

    async def wait(self) -> R:
        return self._work()


class Call(Request[R]):
    """The user's own function: called by the blocking driver, awaited by the other."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], R | Awaitable[R]]) -> None:
        self._work = work

    def block(self) -> R:
        return self._work()  # type: ignore[return-value]  # a `def` returns its value

    async def wait(self) -> R:
        return await self._work()  # type: ignore[misc]  # an `async def` returns an awaitable


def block(operation: Operation[R]) -> R:
    """Run an operation to its end on this thread."""
    try:
        request = next(operation)
        while True:
            try:
                answer = request.block()
            except BaseException as error:  # noqa: BLE001 - the operation decides what it means
                request = operation.throw(error)
            else:
                request = operation.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def await_(operation: Operation[R]) -> R:
    """Run an operation to its end, awaiting each request."""
    try:
        request = next(operation)
        while True:
            try:
                answer = await request.wait()
            except BaseException as error:  # noqa: BLE001 - the operation decides what it means
                request = operation.throw(error)
            else:
                request = operation.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
