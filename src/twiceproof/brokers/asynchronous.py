"""Brokers whose client is asynchronous: an event loop on a thread of its own, asked in batches, with limits."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ..clock import Clock, system_clock
from ..errors import BrokerUnavailable
from ..loop_thread import LoopThread
from ..threads import at_fork
from .base import (
    BrokerFinding,
    DeliverySettlement,
    OutgoingMessage,
    Publication,
    QueueDelivery,
    Refused,
    Unconfirmed,
)
from .publishing import publish_all, publish_fit

__all__ = ["AsyncBroker", "AsyncConnection", "SharedCalls", "thread_name"]

CONNECT_SECONDS = 5.0  # to open a connection
SETTLE_SECONDS = 10.0
CLOSE_SECONDS = 2.0  # for a connection to close in good order
SLACK = 2.0  # for the loop to return partial results after the limit that it was given

T = TypeVar("T")


def thread_name(broker: str) -> str:
    """Return the name of the thread on which a broker's client runs."""
    return f"twiceproof-{broker}"


class AsyncConnection(Protocol):
    """One connection of a client, with the state that belongs to it."""

    broken: asyncio.Future[None]  # done when the connection has ended

    async def close(self) -> None:
        """Close in good order. May be cancelled, and then drops the connection."""


class SharedCalls(Generic[T]):
    """Calls that many messages need at once: one is made for each name, and all get its result, or its error."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[T]] = {}

    async def get(self, name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if name not in self._running:
            self._running[name] = task = asyncio.ensure_future(call())
            task.add_done_callback(lambda done: self._end(name, done))
        return await asyncio.shield(self._running[name])  # one of the messages may be given up

    async def close(self) -> None:
        """Cancel what is under way, and wait until it has cleaned up with the connection that is closed next."""
        running = [*self._running.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _end(self, name: str, task: asyncio.Task[T]) -> None:
        del self._running[name]
        if not task.cancelled():
            task.exception()  # retrieved, in case nobody waits for it any more


C = TypeVar("C", bound=AsyncConnection)


class AsyncBroker(ABC, Generic[C]):
    """Publishes on one connection and receives on another: a broker that throttles publishers still accepts
    acknowledgements.

    A connection that ended is replaced at the next call, never by the client itself: its own reconnects hide which
    messages were lost, and repeat some.
    """

    dedupe: float = 0.0
    most_bytes: int

    def __init__(self, name: str, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._connections: dict[bool, C] = {}  # by whether it is the one that consumes
        self._thread = LoopThread(thread_name(name))
        self._reset_after_fork()
        at_fork(self, in_child=AsyncBroker._reset_after_fork)

    # -- what a technology adds ----------------------------------------------------------------

    @abstractmethod
    async def _connect(self, *, consuming: bool) -> C:
        """Open a connection."""

    @abstractmethod
    def _explain(self, error: BaseException) -> str:
        """Say why there is no connection, without the password, and the next move."""

    @abstractmethod
    async def _send(self, connection: C, message: OutgoingMessage) -> Publication: ...

    @abstractmethod
    async def _take(self, connection: C, place: str, limit: int, wait: float) -> list[QueueDelivery]: ...

    @abstractmethod
    async def _settle_one(self, connection: C, delivery: QueueDelivery, word: DeliverySettlement) -> None: ...

    async def _count(self, connection: C, place: str) -> int | None:
        """Return how many messages of a place have not been delivered yet, where the technology says so."""
        return None

    @abstractmethod
    async def _look(self, connection: C, places: Sequence[str]) -> list[BrokerFinding]: ...

    # -- the seam ------------------------------------------------------------------------------

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> Sequence[Publication]:
        return publish_fit(messages, self.most_bytes, lambda fit: self._publish_within(fit, patience))

    def receive(self, place: str, limit: int, wait: float) -> Sequence[QueueDelivery]:
        work = self._receive(place, limit, wait)
        try:
            return self._thread.run(work, wait + CONNECT_SECONDS + SLACK)
        except TimeoutError:
            raise BrokerUnavailable(self._explain(TimeoutError()), missing=False) from None

    def settle(self, settlements: Sequence[tuple[QueueDelivery, DeliverySettlement]]) -> None:
        if settlements:
            with contextlib.suppress(TimeoutError):  # unsettled deliveries are delivered again
                self._thread.run(self._settle(settlements), SETTLE_SECONDS + SLACK)

    def examine(self, places: Sequence[str] = ()) -> Sequence[BrokerFinding]:
        try:
            return self._thread.run(self._examine(places), CONNECT_SECONDS + SETTLE_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, it is what was found
            return [BrokerFinding("error", "connection", self._explain(error))]

    def waiting(self, place: str) -> int | None:
        """Return how many messages of a place have not been delivered yet; None if that is not known."""
        try:
            return self._thread.run(self._count_waiting(place), CONNECT_SECONDS + SLACK)
        except Exception:  # noqa: BLE001 - a count for metrics
            return None

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._thread.run(self._close(), CLOSE_SECONDS + SLACK)
        self._thread.close(SLACK)

    # -- on the loop ---------------------------------------------------------------------------

    def _publish_within(self, messages: Sequence[OutgoingMessage], patience: float) -> Sequence[Publication]:
        try:
            return self._thread.run(self._publish(messages, patience), patience + SLACK)
        except TimeoutError:
            return [Unconfirmed("The client did not return in time.") for _ in messages]

    async def _publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        start = self._clock.monotonic()
        try:
            connection = await self._open(consuming=False, seconds=min(patience, CONNECT_SECONDS))
        except Exception as error:  # noqa: BLE001 - whatever the client raises: nothing was handed over
            return [Refused(self._explain(error), away=True) for _ in messages]
        left = max(0.0, patience - (self._clock.monotonic() - start))
        outcomes = await publish_all(
            messages, lambda message: self._send(connection, message), left, broken=connection.broken
        )
        if any(isinstance(outcome, Unconfirmed) for outcome in outcomes):
            self._drop(connection)  # a late answer must not be taken for the answer of the next attempt
        return outcomes

    async def _receive(self, place: str, limit: int, wait: float) -> list[QueueDelivery]:
        try:
            connection = await self._open(consuming=True)
        except Exception as error:  # noqa: BLE001 - whatever the client raises: there is no connection
            raise BrokerUnavailable(self._explain(error), missing=False) from None
        return await self._take(connection, place, limit, wait)

    async def _settle(self, settlements: Sequence[tuple[QueueDelivery, DeliverySettlement]]) -> None:
        connection = self._connections.get(True)
        if connection is None or connection.broken.done():
            return
        work = [self._settle_one(connection, delivery, word) for delivery, word in settlements]
        async with asyncio.timeout(SETTLE_SECONDS):
            await asyncio.gather(*work, return_exceptions=True)  # a settlement that fails is a redelivery

    async def _examine(self, places: Sequence[str]) -> list[BrokerFinding]:
        return await self._look(await self._open(consuming=True), places)

    async def _count_waiting(self, place: str) -> int | None:
        return await self._count(await self._open(consuming=True), place)

    async def _open(self, *, consuming: bool, seconds: float = CONNECT_SECONDS) -> C:
        async with asyncio.timeout(seconds), self._opening[consuming]:
            connection = self._connections.get(consuming)
            if connection is None or connection.broken.done():
                self._drop(connection)
                connection = self._connections[consuming] = await self._connect(consuming=consuming)
            return connection

    def _drop(self, connection: C | None) -> None:
        """Stop using a connection. It is closed in the background, since the caller has its outcomes already."""
        if connection is not None:
            self._connections = {role: other for role, other in self._connections.items() if other is not connection}
            task = asyncio.ensure_future(_goodbye(connection))
            self._goodbyes.add(task)
            task.add_done_callback(self._goodbyes.discard)

    async def _close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        if self._goodbyes:
            await asyncio.wait(set(self._goodbyes))

    def _reset_after_fork(self) -> None:
        """Called at first, and in a forked child, where the thread and the connections belong to the parent."""
        self._thread.reset()
        self._connections = {}
        self._opening = {True: asyncio.Lock(), False: asyncio.Lock()}
        self._goodbyes: set[asyncio.Future[None]] = set()


async def _goodbye(connection: AsyncConnection) -> None:
    with contextlib.suppress(Exception):  # it is gone either way
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.close()
