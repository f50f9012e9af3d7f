"""Notifies callers in this process that wait for a change in a space or a queue."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from ..operations import Request
from ..records import Batch, Check, Insert, Remove, Replace

__all__ = ["SOON", "ChangeNotifier", "Subscription", "names_to_notify", "queue_channel"]


class ChangeNotifier:
    """Waiters by name (of a space or a queue). Notifying costs nothing while there are none."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._mutex = threading.Lock()
        self.waiters: dict[str, list[Callable[[], None]]] = {}  # by what they wait for; a commit need only ask if any

    def notify(self, names: Iterable[str]) -> None:
        with self._mutex:
            wakers = [wake for name in names for wake in self.waiters.pop(name, ())]
        for wake in wakers:
            wake()

    def notify_matching(self, matches: Callable[[str], bool]) -> bool:
        """Notify the names that match. Return whether there were any waiters at all."""
        with self._mutex:
            any_waiters = bool(self.waiters)
            names = [name for name in self.waiters if matches(name)]
        self.notify(names)
        return any_waiters

    def notify_all(self) -> None:
        self.notify(list(self.waiters))

    def pause(self, space: str, seconds: float) -> Request[None]:
        return _Pause(self, space, seconds)

    def add(self, name: str, wake: Callable[[], None]) -> None:
        with self._mutex:
            self.waiters.setdefault(name, []).append(wake)

    def drop(self, name: str, wake: Callable[[], None]) -> None:
        with self._mutex:
            wakers = self.waiters.get(name, [])
            if wake in wakers:
                wakers.remove(wake)
            if not wakers:
                self.waiters.pop(name, None)


class _Pause(Request[None]):
    __slots__ = ("_notifier", "_seconds", "_space")

    def __init__(self, notifier: ChangeNotifier, space: str, seconds: float) -> None:
        self._notifier = notifier
        self._space = space
        self._seconds = seconds

    def block(self) -> None:
        notified = threading.Event()
        self._notifier.add(self._space, notified.set)
        try:
            notified.wait(self._seconds)
        finally:
            self._notifier.drop(self._space, notified.set)

    async def wait(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        notified = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is left
                loop.call_soon_threadsafe(notified.set)

        self._notifier.add(self._space, wake)
        try:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes right after the notification.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await notified.wait()
        finally:
            self._notifier.drop(self._space, wake)


# Only what falls due sooner than this is notified. Callers that wait for a queue poll at least this often, and so find
# everything else in time. Leases are usually longer: taking a claim, or renewing it, notifies no one.
SOON = 20.0


def queue_channel(queue: str) -> str:
    """The name to wait for a queue by. It differs from every space: a tenant's name has no colon."""
    return f"queue:{queue}"


def names_to_notify(batch: Batch) -> list[str]:
    """The names to notify after a batch was committed: none for most batches, which must be cheap."""
    names = []
    for write in batch.writes:
        if isinstance(write, Check):
            continue
        if isinstance(write, Remove) or (isinstance(write, Replace) and write.draw):
            names.append(write.at.space)
        if not isinstance(write, Remove) and write.due_in is not None and _is_soon(write, write.due_in):
            names.append(queue_channel(write.queue))
    return names


def _is_soon(write: Insert | Replace, due_in: float) -> bool:
    """A heartbeat is not notified: it draws no fence, and keeps a lease."""
    return due_in < SOON and (write.draw or write.lease is None)


class Subscription:
    """A standing wait for some names: poll, then `wait`, which returns at once if there was a notification since."""

    def __init__(self, notifier: ChangeNotifier, names: Iterable[str], listen: Callable[[], float | None]) -> None:
        self._notifier = notifier
        self._listen = listen
        # Not an Event: `wake` is also called by signal handlers, while this thread may hold any lock.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._called = False
        self._wakers: dict[str, Callable[[], None]] = {}
        self.move(names)

    def move(self, names: Iterable[str]) -> None:
        """Wait for these names from now on."""
        wanted = set(names)
        for name in self._wakers.keys() - wanted:
            self._notifier.drop(name, self._wakers.pop(name))
        for name in wanted - self._wakers.keys():
            self._wakers[name] = waker = self._waker(name)
            self._notifier.add(name, waker)

    def _waker(self, name: str) -> Callable[[], None]:
        def waker() -> None:
            if self._wakers.get(name) is waker:
                self._notifier.add(name, waker)  # a notification clears the name: wait for the next one
            self.wake()

        return waker

    def wake(self) -> None:
        if not self._called:
            self._called = True
            self._calls.put(None)

    def wait(self, seconds: float) -> None:
        """Wait for a notification, at most so long, and no longer than the store can rely on receiving one."""
        most = self._listen()
        with contextlib.suppress(Empty):
            self._calls.get(timeout=max(0.0, seconds if most is None else min(seconds, most)))
        self._called = False

    def take(self) -> bool:
        """Whether there was a notification since the last one was taken or waited for. Waits for nothing."""
        called, self._called = self._called, False
        if called:
            with contextlib.suppress(Empty):
                self._calls.get_nowait()
        return called

    def close(self) -> None:
        self.move(())
