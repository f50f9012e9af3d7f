"""Wakes those who wait for a change in a space. A hint: whoever is woken looks for itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

from ..drive import Request

__all__ = ["Bell"]


class Bell:
    """Waiters by space. Ringing costs nothing while nobody waits."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._mutex = threading.Lock()
        self._waiters: dict[str, list[Callable[[], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def ring(self, spaces: Iterable[str]) -> None:
        with self._mutex:
            wakers = [wake for space in spaces for wake in self._waiters.pop(space, ())]
        for wake in wakers:
            wake()

    def ring_where(self, meant: Callable[[str], bool]) -> bool:
        """Whether anybody was there to hear it."""
        with self._mutex:
            somebody = bool(self._waiters)
            spaces = [space for space in self._waiters if meant(space)]
        self.ring(spaces)
        return somebody

    def ring_all(self) -> None:
        self.ring(list(self._waiters))

    def pause(self, space: str, seconds: float) -> Request[None]:
        return _Pause(self, space, seconds)

    def add(self, space: str, wake: Callable[[], None]) -> None:
        with self._mutex:
            self._waiters.setdefault(space, []).append(wake)

    def drop(self, space: str, wake: Callable[[], None]) -> None:
        with self._mutex:
            wakers = self._waiters.get(space, [])
            if wake in wakers:
                wakers.remove(wake)
            if not wakers:
                self._waiters.pop(space, None)


class _Pause(Request[None]):
    __slots__ = ("_bell", "_seconds", "_space")

    def __init__(self, bell: Bell, space: str, seconds: float) -> None:
        self._bell = bell
        self._space = space
        self._seconds = seconds

    def block(self) -> None:
        rung = threading.Event()
        self._bell.add(self._space, rung.set)
        try:
            rung.wait(self._seconds)
        finally:
            self._bell.drop(self._space, rung.set)

    async def wait(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        rung = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                loop.call_soon_threadsafe(rung.set)

        self._bell.add(self._space, wake)
        try:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes right after the ring.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await rung.wait()
        finally:
            self._bell.drop(self._space, wake)
