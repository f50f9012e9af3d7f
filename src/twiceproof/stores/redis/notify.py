"""Wakes waiters in other processes with PUBLISH. A hint: it may be lost, and on a cluster there is none."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable

from .connection import RedisConnection

__all__ = ["CHANNEL", "UNHEARD", "Heard", "RedisListener", "mark"]


CHANNEL = "twiceproof:changes"  # also in lua/commit.lua
FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0
UNHEARD = 0.8  # how long to rely on hearing while we do not
GRACE = 1.0  # how long closing waits for the thread; all it could bring is a hint

Heard = Callable[[Callable[[str], bool]], object]


def mark(space: str) -> str:
    """Short, and sometimes shared by two spaces: whoever is woken looks for itself."""
    return f"{zlib.crc32(space.encode()):08x}"


def meant_by(message: bytes) -> Callable[[str], bool]:
    marks = frozenset(message.decode().split(","))
    return lambda space: mark(space) in marks


class RedisListener:
    """Hears what other processes tell, on a thread and a connection of its own, from the first pause on."""

    def __init__(self, open_link: Callable[[], RedisConnection]) -> None:
        self._open_link = open_link
        self._leaked: list[RedisConnection | None] = []
        self._link: RedisConnection | None = None
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here, and its connection is not ours to close."""
        self._leaked.append(self._link)
        self._link = None
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()  # of the living thread: one that is left behind keeps its own
        self._hears = False

    def start(self, heard: Heard) -> float | None:
        """How long one may wait without looking: None while we hear."""
        if self._thread is None:
            self._start(heard)
        return None if self._hears else UNHEARD

    def _start(self, heard: Heard) -> None:
        with self._mutex:
            if self._thread is not None:
                return
            stopped = self._stopped = threading.Event()
            run = (heard, stopped)
            thread = threading.Thread(target=self._run, args=run, name="twiceproof-listen", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread to be had: who waits looks by itself, and the next one tries again
                return
            self._thread = thread

    def close(self) -> None:
        with self._mutex:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopped.set()
        if self._link is not None:
            self._link.close()
        thread.join(GRACE)  # one that is still connecting ends by itself

    def _run(self, heard: Heard, stopped: threading.Event) -> None:
        retry = FIRST_RETRY
        while not stopped.wait(0 if retry == FIRST_RETRY else retry):
            # Whatever breaks here, even a link closed under our hands: who waits still looks by itself.
            with contextlib.suppress(Exception):
                link = self._link = self._open_link()
                (reply,) = link.ask(("SUBSCRIBE", CHANNEL))
                if isinstance(reply, Exception):  # no right to it: try again much later
                    raise reply
                link.wait_for_ever()
                retry = FIRST_RETRY
                self._hears = True
                heard(lambda space: True)  # what changed before we listened is not told again
                _hear(link, heard, stopped)
            if self._hears:
                self._hears = False
                heard(lambda space: True)  # whoever relied on us looks, and then relies on us no more
            retry = min(retry * 2, LONGEST_RETRY)
        if self._link is not None:
            self._link.close()
            self._link = None


def _hear(link: RedisConnection, heard: Heard, stopped: threading.Event) -> None:
    while not stopped.is_set():
        _, _, message = link.receive()
        heard(meant_by(message))
