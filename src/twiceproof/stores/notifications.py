"""Wakes those who wait for a space or a queue."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from ..operations import Request
from ..records import Batch, Check, Insert, Remove, Replace

__all__ = ["SOON", "ChangeNotifier", "Subscription", "names_to_notify", "queue_channel"]


class ChangeNotifier:
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

    def __init__(self, bell: ChangeNotifier, space: str, seconds: float) -> None:
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


# Only what falls due sooner than this rings. Whoever waits for a queue asks at least this often, and so hears of
# everything else in time. Leases are usually longer: taking a claim, and keeping it, wakes nobody.
SOON = 20.0


def queue_channel(queue: str) -> str:
    """The name under which one waits for a queue. No space is called so: a tenant's name has no colon."""
    return f"queue:{queue}"


def names_to_notify(batch: Batch) -> list[str]:
    """The names to ring. Asked of every batch that lands: most ring nobody, and must not pay for it."""
    places = []
    for write in batch.writes:
        if isinstance(write, Check):
            continue
        if isinstance(write, Remove) or (isinstance(write, Replace) and write.draw):
            places.append(write.at.space)
        if not isinstance(write, Remove) and write.due_in is not None and _is_soon(write, write.due_in):
            places.append(queue_channel(write.queue))
    return places


def _is_soon(write: Insert | Replace, due_in: float) -> bool:
    """A heartbeat is not: it draws nothing, and keeps a lease."""
    return due_in < SOON and (write.draw or write.lease is None)


class Subscription:
    """Look, then `wait`: it returns at once if something rang since the last wait."""

    def __init__(self, bell: ChangeNotifier, places: Iterable[str], listen: Callable[[], float | None]) -> None:
        self._bell = bell
        self._listen = listen
        # Not an Event: `wake` is also called by signal handlers, which may find this thread inside any lock.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._called = False
        self._wakers: dict[str, Callable[[], None]] = {}
        self.move(places)

    def move(self, places: Iterable[str]) -> None:
        """From now on, hear of these."""
        wanted = set(places)
        for place in self._wakers.keys() - wanted:
            self._bell.drop(place, self._wakers.pop(place))
        for place in wanted - self._wakers.keys():
            self._wakers[place] = waker = self._waker(place)
            self._bell.add(place, waker)

    def _waker(self, place: str) -> Callable[[], None]:
        def waker() -> None:
            if self._wakers.get(place) is waker:
                self._bell.add(place, waker)  # a ring clears the place: stay for the next one
            self.wake()

        return waker

    def wake(self) -> None:
        if not self._called:
            self._called = True
            self._calls.put(None)

    def wait(self, seconds: float) -> None:
        """Until something rings, at most so long; not longer than the store can vouch for hearing of it."""
        most = self._listen()
        with contextlib.suppress(Empty):
            self._calls.get(timeout=max(0.0, seconds if most is None else min(seconds, most)))
        self._called = False

    def close(self) -> None:
        self.move(())
