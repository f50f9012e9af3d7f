"""Brokers whose client is asynchronous: an event loop on a thread of its own, asked in batches, with limits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from ..clock import Clock, system_clock
from ..errors import BrokerUnavailable
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

__all__ = ["AsyncBroker", "AsyncConnection", "LoopThread"]

CONNECT_SECONDS = 5.0  # to open a connection
SETTLE_SECONDS = 10.0
CLOSE_SECONDS = 2.0  # for a connection to say goodbye
SLACK = 2.0  # for the loop to return what it has, beyond the limit that it was given

T = TypeVar("T")


class LoopThread:
    """An event loop on a daemon thread, started when first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run it to its end, or raise TimeoutError after so many seconds; it is cancelled then."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        with self._mutex:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SLACK)
        if not thread.is_alive():
            _end_tasks(loop)
            loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._mutex:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Clients leave tasks behind, and a task that is destroyed while it waits is reported as an error."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        with contextlib.suppress(TimeoutError):
            loop.run_until_complete(asyncio.wait(tasks, timeout=SLACK))
    loop.run_until_complete(loop.shutdown_asyncgens())


class AsyncConnection(Protocol):
    """One connection of a client, with what is known on it."""

    broken: asyncio.Future[None]  # done when the connection has ended

    async def close(self) -> None:
        """Say goodbye; may be cancelled, and then drops the connection."""


C = TypeVar("C", bound=AsyncConnection)


class AsyncBroker(ABC, Generic[C]):
    """Publishes on one connection and receives on another: a broker that slows down publishers still takes acks.

    A connection that ended is replaced at the next call, never by the client itself: its own reconnects hide which
    messages were lost, and repeat some.
    """

    dedupe: float = 0.0
    most_bytes: int

    def __init__(self, name: str, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._connections: dict[bool, C] = {}  # by whether it is the one that consumes
        self._thread = LoopThread(f"twiceproof-{name}")
        self._start_over()
        at_fork(self, in_child=AsyncBroker._start_over)

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
            with contextlib.suppress(TimeoutError):  # what was not settled comes again
                self._thread.run(self._settle(settlements), SETTLE_SECONDS + SLACK)

    def examine(self, places: Sequence[str] = ()) -> Sequence[BrokerFinding]:
        try:
            return self._thread.run(self._examine(places), CONNECT_SECONDS + SETTLE_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, it is what was found
            return [BrokerFinding("error", "connection", self._explain(error))]

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._thread.run(self._close(), CLOSE_SECONDS + SLACK)
        self._thread.close()

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
            self._drop(connection)  # a late answer must not be taken for that of the next attempt
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

    async def _open(self, *, consuming: bool, seconds: float = CONNECT_SECONDS) -> C:
        async with asyncio.timeout(seconds), self._opening[consuming]:
            connection = self._connections.get(consuming)
            if connection is None or connection.broken.done():
                self._drop(connection)
                connection = self._connections[consuming] = await self._connect(consuming=consuming)
            return connection

    def _drop(self, connection: C | None) -> None:
        """Use it no more. It is closed in the background: the caller has its outcomes already."""
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

    def _start_over(self) -> None:
        """At first; and in a forked child, where the thread and the connections are the parent's."""
        self._thread.reset()
        self._connections = {}
        self._opening = {True: asyncio.Lock(), False: asyncio.Lock()}
        self._goodbyes: set[asyncio.Future[None]] = set()


async def _goodbye(connection: AsyncConnection) -> None:
    with contextlib.suppress(Exception):  # it is gone either way
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.close()
