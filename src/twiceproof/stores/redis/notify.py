"""Notifies waiters in other processes with PUBLISH. A hint: it may be lost, and a cluster has none."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable

from ...threads import BackgroundThread, ThreadRun
from .connection import RedisConnection

__all__ = ["CHANNEL", "UNRELIABLE", "OnChange", "RedisListener", "mark"]


CHANNEL = "twiceproof:changes"  # also in lua/commit.lua
FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0
UNRELIABLE = 0.8  # how long callers may rely on notifications that may not come
GRACE = 1.0  # seconds that closing waits for the thread, which carries hints only

OnChange = Callable[[Callable[[str], bool]], object]


def mark(space: str) -> str:
    """A short form of a space, sometimes shared by two: a caller that is woken looks for itself."""
    return f"{zlib.crc32(space.encode()):08x}"


def meant_by(message: bytes) -> Callable[[str], bool]:
    marks = frozenset(message.decode().split(","))
    return lambda space: mark(space) in marks


class RedisListener:
    """Receives notifications of other processes, on a thread and a connection of its own, from the first wait on."""

    def __init__(self, open_link: Callable[[], RedisConnection]) -> None:
        self._open_link = open_link
        self._leaked: list[RedisConnection | None] = []
        self._link: RedisConnection | None = None
        self._thread = BackgroundThread(self, RedisListener._listen, "twiceproof-listen", grace=GRACE)
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here, and its connection is not ours to close."""
        self._thread.reset()
        self._leaked.append(self._link)
        self._link = None
        self._on_change: OnChange = _ignore
        self._receives = False
        self._retry = FIRST_RETRY

    def start(self, on_change: OnChange) -> float | None:
        """How long a caller may wait without looking: None while notifications are received."""
        if not self._thread.started:
            self._on_change = on_change
            with contextlib.suppress(
                RuntimeError
            ):  # no thread: the caller looks by itself, and the next one tries again
                self._thread.start()
        return None if self._receives else UNRELIABLE

    def close(self) -> None:
        link = self._link
        if self._thread.started and link is not None:
            link.close()  # ends a wait for the next message
        self._thread.stop()  # a thread that is still connecting ends by itself

    def _listen(self, run: ThreadRun) -> float:
        """Subscribe, and receive until stopped or disconnected. Return when to try again."""
        # Whatever breaks here, even a link that is closed meanwhile: callers that wait still look by themselves.
        with contextlib.suppress(Exception), contextlib.closing(self._open_link()) as link:
            self._link = link
            self._receive(link, run)
        if not run.stopped:
            self._link = None
        if self._receives:
            self._receives = False
            self._on_change(_every_name)  # callers that relied on notifications look, and then rely on them no more
        self._retry = min(self._retry * 2, LONGEST_RETRY)
        return self._retry

    def _receive(self, link: RedisConnection, run: ThreadRun) -> None:
        (reply,) = link.ask(("SUBSCRIBE", CHANNEL))
        if isinstance(reply, Exception):  # the user has no right to it: try again much later
            raise reply
        link.wait_for_ever()
        self._retry = FIRST_RETRY
        self._receives = True
        self._on_change(_every_name)  # there is no notification of changes before the subscription
        while not run.stopped:
            _, _, message = link.receive()
            self._on_change(meant_by(message))


def _every_name(name: str) -> bool:
    return True


def _ignore(matches: Callable[[str], bool]) -> None:
    return None
