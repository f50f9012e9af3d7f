"""Runs the core's operations, blocking or awaiting: one core, two drivers.

An operation is a generator that yields requests. A request can be answered by blocking the calling
thread (`block`) or by awaiting (`wait`). Inside an operation, `answer = yield from request`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from msgspec import Struct

__all__ = ["Call", "Carried", "Inline", "Operation", "Raised", "Request", "Returned", "await_", "block", "thrown"]

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


class Returned(Struct, frozen=True):
    """The user's function came back with this."""

    value: Any


class Raised(Struct, frozen=True):
    """The user's function ended with this. A value: what follows from it is the operation's to decide."""

    error: BaseException


class Call(Request[Returned | Raised]):
    """The user's own function: called by the blocking driver, awaited by the other."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def block(self) -> Returned | Raised:
        try:
            return Returned(self._work())
        except BaseException as error:  # noqa: BLE001 - also an interrupt leaves the outcome unknown
            return Raised(error)

    async def wait(self) -> Returned | Raised:
        try:
            return Returned(await self._work())
        except GeneratorExit:  # the coroutine is being thrown away: it can await nothing more
            raise
        except BaseException as error:  # noqa: BLE001 - also a cancellation leaves the outcome unknown
            return Raised(error)


class Carried(BaseException):
    """The user's StopIteration on its way out: Python would make a RuntimeError of it in each generator."""

    def __init__(self, error: StopIteration) -> None:
        self.error = error


def thrown(error: BaseException) -> BaseException:
    """What an operation raises to hand on the user's own error: the drivers unpack it."""
    return Carried(error) if isinstance(error, StopIteration) else error


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
    except Carried as carried:
        own = carried.error
    raise own


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
    except Carried as carried:
        own = carried.error
    raise own
