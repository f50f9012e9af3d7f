"""What can happen to bytes on their way through a `FaultProxy`, the same for the same dice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

__all__ = ["Clog", "Drip", "HalfOpen", "Jitter", "Late", "Latency", "OneWay", "Reset", "Silence", "Toxic"]

Way = Literal["request", "reply"]
Send = Callable[[bytes], Awaitable[None]]
MANY = 1_000_000


class Connection(Protocol):
    """A client and its server, as the proxy holds them together."""

    def reset(self) -> None: ...


class Toxic:
    """Harms the connections that are open when it is armed, and the next `fresh` ones."""

    def __init__(self, *, fresh: int = 0) -> None:
        self.fresh = fresh
        self.bites = 0  # pieces that did not simply pass
        self._links: set[Connection] = set()

    def meet(self, link: Connection) -> None:
        """It was open already."""
        self._links.add(link)

    def greet(self, link: Connection) -> None:
        """It is new."""
        if self.fresh > 0:
            self.fresh -= 1
            self.meet(link)

    def harms(self, link: Connection) -> bool:
        return link in self._links

    def disarm(self) -> None:
        """From now on everything passes. What is held for good is given up."""
        self._links = set()

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        raise NotImplementedError


class Latency(Toxic):
    """Every piece of a reply is late by as much."""

    def __init__(self, seconds: float) -> None:
        super().__init__(fresh=MANY)
        self._seconds = seconds

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        if way == "reply":
            self.bites += 1
            await asyncio.sleep(self._seconds)
        await send(data)


class Jitter(Toxic):
    """Every piece is late, none by as much as the one before."""

    def __init__(self, dice: random.Random, most: float) -> None:
        super().__init__(fresh=MANY)
        self._dice = dice
        self._most = most

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        self.bites += 1
        await asyncio.sleep(self._dice.random() * self._most)
        await send(data)


class Silence(Toxic):
    """The first connection that asks this gets no answer to it, nor to anything else, and stays open."""

    def __init__(self, match: bytes) -> None:
        super().__init__(fresh=MANY)
        self._match = match
        self._silent: Connection | None = None

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        if way == "request" and self._silent is None and self._match in data:
            self._silent = link
        if way == "reply" and link is self._silent:
            self.bites += 1
            return
        await send(data)


class Reset(Toxic):
    """So many bytes pass in one direction, then the connection is reset: once."""

    def __init__(self, way: Way, after: int, *, fresh: int = 0) -> None:
        super().__init__(fresh=fresh)
        self._way = way
        self._left = after

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        if way != self._way or self._left < 0 or len(data) <= self._left:
            if way == self._way:
                self._left -= len(data) if self._left >= 0 else 0
            await send(data)
            return
        passed, self._left = data[: self._left], -1
        self.bites += 1
        await send(passed)
        link.reset()


class HalfOpen(Toxic):
    """The connection stays, and nothing moves on it any more. Neither side is told."""

    def __init__(self, *, fresh: int = 0) -> None:
        super().__init__(fresh=fresh)
        self._over = asyncio.Event()

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        self.bites += 1
        await self._over.wait()

    def disarm(self) -> None:
        self._over.set()
        for link in self._links:
            link.reset()
        super().disarm()


class OneWay(Toxic):
    """What goes in one direction is lost without a word."""

    def __init__(self, way: Way, *, fresh: int = 0) -> None:
        super().__init__(fresh=fresh)
        self._way = way

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        if way == self._way:
            self.bites += 1
        else:
            await send(data)


class Late(Toxic):
    """A request reaches the server when its sender has given up, and may have sent it again: a duplicate."""

    def __init__(self, seconds: float, *, fresh: int = 0) -> None:
        super().__init__(fresh=fresh)
        self._seconds = seconds

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        if way == "request":
            self.bites += 1
            await asyncio.sleep(self._seconds)
        await send(data)


class Drip(Toxic):
    """A few bytes at a time."""

    def __init__(self, dice: random.Random, pause: float) -> None:
        super().__init__(fresh=MANY)
        self._dice = dice
        self._pause = pause

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        self.bites += 1
        start = 0
        while start < len(data):
            end = start + self._dice.randrange(1, max(8, len(data) // 20))
            await send(data[start:end])
            await asyncio.sleep(self._dice.random() * self._pause)
            start = end


class Clog(Toxic):
    """Swizzled: connections are clogged one after the other, and come free again in another order."""

    def __init__(self, dice: random.Random, step: float, hold: float, *, fresh: int = 0) -> None:
        super().__init__(fresh=fresh)
        self._dice = dice
        self._step = step
        self._hold = hold
        self._left: dict[Connection, int] = {}  # pieces that still pass before it is clogged
        self._free: dict[Connection, float] = {}  # when it comes free, by the monotonic clock

    def meet(self, link: Connection) -> None:
        super().meet(link)
        self._left[link] = self._dice.randrange(2)

    async def carry(self, link: Connection, way: Way, data: bytes, send: Send) -> None:
        self._left[link] -= 1
        now = time.monotonic()
        if self._left[link] < 0:
            free = self._free.setdefault(link, now + self._hold + self._dice.randrange(8) * self._step)
            self.bites += now < free
            await asyncio.sleep(max(0.0, free - now))
        await send(data)
