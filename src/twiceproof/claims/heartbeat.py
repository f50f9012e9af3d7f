"""Keeps held claims alive while their work runs, from a thread of its own: a blocked loop cannot stop it."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable

from ..clock import Clock, system_clock
from ..drive import Operation, block
from .hold import Hold
from .outcomes import Held, LostHold

__all__ = ["Heartbeat"]

log = logging.getLogger("twiceproof")

BEATS_PER_LEASE = 3  # two may be missed before the lease lapses
LONGEST_TICK = 5.0


class Heartbeat:
    """Renews every claim that is held here, when a third of its lease has gone by."""

    def __init__(
        self,
        renew: Callable[[Held], Operation[Held | LostHold]],
        *,
        clock: Clock = system_clock,
        chore: Callable[[], None] | None = None,
    ) -> None:
        self._renew = renew
        self._clock = clock
        self._chore = chore
        self._reset()
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _reset(reference))

    def _reset(self) -> None:
        self._holds: dict[int, Hold] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._tick = LONGEST_TICK

    def keep(self, hold: Hold) -> None:
        """From now on, until it is dropped."""
        pace = hold.held.lease / BEATS_PER_LEASE
        hold.beat_at = self._clock.monotonic() + pace
        self._holds[id(hold)] = hold
        if self._thread is None or pace / 2 < self._tick:
            self._start(pace)

    def drop(self, hold: Hold) -> None:
        self._holds.pop(id(hold), None)

    def _start(self, pace: float) -> None:
        with self._changed:
            self._tick = min(self._tick, pace / 2)
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="twiceproof-heartbeat", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while self._pause():
            self.beat()
            self._do_chore()

    def _pause(self) -> bool:
        """False: stopped. Looked at under the lock, or a stop just before the wait would be slept through."""
        with self._changed:
            if not self._stopped:
                self._changed.wait(self._tick)
            return not self._stopped

    def beat(self) -> None:
        """Renew what is due. One claim that cannot be renewed must not starve the others."""
        for hold in list(self._holds.values()):
            if hold.lost is None and self._clock.monotonic() >= hold.beat_at:
                try:
                    self._beat_one(hold)
                except Exception as error:  # noqa: BLE001 - if this thread ends, every claim held here lapses
                    log.warning("heartbeat of %s failed, will try again: %s", hold.ask.at.space, error)

    def _beat_one(self, hold: Hold) -> None:
        answer = block(self._renew(hold.held))
        if isinstance(answer, Held):
            hold.held = answer
            hold.beat_at = self._clock.monotonic() + answer.lease / BEATS_PER_LEASE
        elif id(hold) in self._holds:  # otherwise the work ended meanwhile, and its last word moved the fence
            hold.lost = answer
            log.warning("lost the claim %s: it is now %s", hold.ask.at.space, answer.state or "gone")

    def _do_chore(self) -> None:
        if self._chore is not None:
            try:
                self._chore()
            except Exception as error:  # noqa: BLE001 - if this thread ends, every claim held here lapses
                log.warning("housekeeping failed, will try again: %s", error)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _reset(reference: weakref.ref[Heartbeat]) -> None:
    heartbeat = reference()
    if heartbeat is not None:
        heartbeat._reset()
