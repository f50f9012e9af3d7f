"""Brings completions to the store while their flow is busy with something else, from a thread of its own.

A flow that goes straight on to its next step takes its completions along itself, at no extra cost. The courier looks
every few milliseconds for those that lie about longer; it sleeps when no flow has run for a while.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from ..drive import Operation, block
from ..forks import at_fork

__all__ = ["Courier"]

if TYPE_CHECKING:
    from .entry import Entry

log = logging.getLogger("twiceproof")

TICK = 0.005
LINGER = 200  # empty rounds before it goes to sleep
LOOK = 5.0  # how often it looks, asleep, whether there still is an app
GRACE = 1.0  # for what it is bringing when it is stopped: a commit under way is the store's to wait for


class Letters(Protocol):
    """A ledger, as the courier sees it."""

    @property
    def oldest(self) -> Entry | None: ...

    def flush_away(self) -> Operation[None]: ...


class Courier:
    """One per app. `mind` costs an append while it is awake."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep_for = sleep
        self._reset()
        at_fork(self, in_child=Courier._reset)

    def _reset(self) -> None:
        self._minded: deque[Letters] = deque()
        self._asleep = True
        self._stopped = False
        self._called = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def mind(self, letters: Letters) -> None:
        self._minded.append(letters)
        if self._asleep:
            self._wake()

    def _wake(self) -> None:
        with self._starting:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(
                    target=_run, args=(weakref.ref(self), self._called), name="twiceproof-courier", daemon=True
                )
                self._thread.start()
        self._called.set()

    def _rounds(self) -> None:
        """Until nothing has come for a while."""
        seen: list[tuple[Letters, Entry | None]] = []
        idle = 0
        self._asleep = False
        while idle < LINGER and not self._stopped:
            self._sleep_for(TICK)
            seen, lying = self._collect(), seen
            idle = idle + 1 if not seen and not lying else 0
            for letters, entry in lying:
                if entry is not None and letters.oldest is entry:
                    self._bring(letters)

    def _lie_down(self) -> bool:
        """False: somebody came meanwhile."""
        self._called.clear()
        self._asleep = True
        return not self._minded and not self._stopped

    def _collect(self) -> list[tuple[Letters, Entry | None]]:
        return [(letters, letters.oldest) for letters in _emptied(self._minded)]

    def _bring(self, letters: Letters) -> None:
        try:
            block(letters.flush_away())
        except Exception as error:  # noqa: BLE001 - the flow writes it again itself, and hears of it
            log.debug("a completion could not be brought yet: %s", error)

    def stop(self) -> None:
        self._stopped = True
        self._called.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(GRACE)


def _run(reference: weakref.ref[Courier], called: threading.Event) -> None:
    """Knows its courier only while there is something to do: an app that nobody closed leaves no thread behind."""
    courier = reference()
    while courier is not None and not courier._stopped:
        courier._rounds()
        tired = courier._lie_down()
        del courier
        while tired and not called.wait(LOOK) and reference() is not None:
            pass
        courier = reference()


def _emptied(minded: deque[Letters]) -> Iterator[Letters]:
    while minded:
        yield minded.popleft()
