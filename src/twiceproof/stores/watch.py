"""A standing place at the bell: what rings while its owner looks elsewhere is not missed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from .bell import Bell

__all__ = ["Watch"]


class Watch:
    """Look, then `wait`: it returns at once if something rang since the last wait."""

    def __init__(self, bell: Bell, places: Iterable[str], listen: Callable[[], float | None]) -> None:
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
