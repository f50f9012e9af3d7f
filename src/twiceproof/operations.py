"""Operations: generators that yield requests, run by a blocking or an awaiting driver; and the general requests.

One implementation serves blocking and awaiting callers: `block` answers each request on the calling thread, `await_` on
the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from .clock import Clock
from .threads import SerialThread

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "Concurrently",
    "InThread",
    "Inline",
    "Offload",
    "Operation",
    "Raised",
    "Request",
    "Returned",
    "Sleep",
    "StopIterationCarrier",
    "Uncancellable",
    "UserCall",
    "await_",
    "block",
    "carry_stop_iteration",
]


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
    """Work so short that an event loop does it inline."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], R]) -> None:
        self._work = work

    def block(self) -> R:
        return self._work()

    async def wait(self) -> R:
        return self._work()


class Returned(Struct, frozen=True):
    """The user's function returned this."""

    value: Any


class Raised(Struct, frozen=True):
    """The user's function raised this. A value: the operation decides what follows."""

    error: BaseException


class UserCall(Request[Returned | Raised]):
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


class StopIterationCarrier(BaseException):
    """The user's StopIteration on its way out: Python would make a RuntimeError of it in each generator."""

    def __init__(self, error: StopIteration) -> None:
        self.error = error


def carry_stop_iteration(error: BaseException) -> BaseException:
    """Return what an operation raises to pass on the user's own error; the drivers unpack it."""
    return StopIterationCarrier(error) if isinstance(error, StopIteration) else error


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
    except StopIterationCarrier as carried:
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
    except StopIterationCarrier as carried:
        own = carried.error
    raise own


class InThread(Inline[R]):
    """Blocking work, done on a thread for an awaiting caller."""

    __slots__ = ()

    async def wait(self) -> R:
        import asyncio

        return await asyncio.to_thread(self._work)


class Offload(Request[R]):
    """Blocking work, done on one certain thread for an awaiting caller, after what it was handed before."""

    __slots__ = ("_thread", "_work")

    def __init__(self, thread: SerialThread, work: Callable[[], R]) -> None:
        self._thread = thread
        self._work = work

    def block(self) -> R:
        return self._work()

    async def wait(self) -> R:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._thread.do(lambda: self._fill(loop, future))
        return await future

    def _fill(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[R]) -> None:
        try:
            answer = self._work()
        except Exception as error:  # noqa: BLE001 - the caller raises it
            _settle(loop, future, lambda error=error: future.set_exception(error))  # type: ignore[misc]
        else:
            _settle(loop, future, lambda: future.set_result(answer))


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[R], settle: Callable[[], None]) -> None:
    def unless_done() -> None:
        if not future.done():
            settle()

    with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is left
        loop.call_soon_threadsafe(unless_done)


class Uncancellable(Request[R]):
    """An operation that is finished although its task is cancelled: on a thread, which a loop's shutdown waits for."""

    __slots__ = ("_operation",)

    def __init__(self, operation: Operation[R]) -> None:
        self._operation = operation

    def block(self) -> R:
        return block(self._operation)

    async def wait(self) -> R:
        import asyncio

        try:
            work = asyncio.get_running_loop().run_in_executor(None, block, self._operation)
        except RuntimeError:  # no thread can be started: blocking the loop is better than not doing it
            return block(self._operation)
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):  # the caller raises the first one again
                await asyncio.shield(work)
        return work.result()


class Concurrently(Request[list[R]]):
    """Several operations: concurrent for an awaiting caller, one after the other for a blocking one."""

    __slots__ = ("_operations",)

    def __init__(self, operations: Sequence[Operation[R]]) -> None:
        self._operations = operations

    def block(self) -> list[R]:
        return [block(operation) for operation in self._operations]

    async def wait(self) -> list[R]:
        if len(self._operations) == 1:  # nearly always
            return [await await_(self._operations[0])]
        import asyncio  # loaded already where it is awaited; a blocking program need not load it

        return list(await asyncio.gather(*map(await_, self._operations)))


class Sleep(Request[None]):
    """A pause by the injected clock."""

    __slots__ = ("_clock", "_seconds")

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def block(self) -> None:
        self._clock.sleep(self._seconds)

    async def wait(self) -> None:
        await self._clock.rest(self._seconds)
