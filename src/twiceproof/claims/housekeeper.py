"""Sweeps now and then, on a thread of its own: cleaning up must not hold up heartbeats."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from ..clock import Clock
from ..drive import Operation, block
from ..stores.base import Store
from .retention import PASS, sweep

__all__ = ["Housekeeper"]

log = logging.getLogger("twiceproof")

GRACE = 1.0  # for a sweep when we are stopped: what is left lies there for the next one


class Housekeeper:
    """Asked often, it does something every `every` seconds, and goes on while there is much to do."""

    def __init__(
        self, store: Store, *, clock: Clock, every: float, also: Sequence[Callable[[Store], Operation[int]]] = ()
    ) -> None:
        self._store = store
        self._also = also
        self._clock = clock
        self._every = every
        self._swept_at = clock.monotonic()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def tidy_up_if_due(self) -> None:
        at_work = self._thread is not None and self._thread.is_alive()
        if at_work or self._stopped or self._clock.monotonic() - self._swept_at < self._every:
            return
        self._swept_at = self._clock.monotonic()
        self._thread = threading.Thread(target=self._tidy_up, name="twiceproof-sweep", daemon=True)
        self._thread.start()

    def _tidy_up(self) -> None:
        try:
            while not self._stopped and block(sweep(self._store)).total >= PASS:
                continue
            for chore in self._also:
                if not self._stopped:
                    block(chore(self._store))
        except Exception as error:  # noqa: BLE001 - it will be tried again, and nobody waits for it
            if not self._stopped:
                log.warning("sweeping failed, will try again: %s", error)

    def stop(self) -> None:
        self._stopped = True
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(GRACE)
