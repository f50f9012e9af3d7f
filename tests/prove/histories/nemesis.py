"""What goes wrong while real histories are made: processes stopped and killed, answers lost, connections cut."""

from __future__ import annotations

import time
from collections import Counter
from random import Random

from tests.prove.histories.crew import Crew, Process
from tests.servers.proxy import FaultProxy

BETWEEN = (0.01, 0.05)  # seconds from one fault to the next
STOPPED = (0.03, 0.15)
REFUSED = 0.3  # longer than a member's patience


class Nemesis:
    """`strike` is called often; it does something when its time has come."""

    def __init__(self, rng: Random, crew: Crew, proxy: FaultProxy | None, kills: int) -> None:
        self.rng = rng
        self.crew = crew
        self.proxy = proxy
        self.kills = kills
        self.did: Counter[str] = Counter()
        self._next = 0.0
        self._wake: list[tuple[float, Process]] = []
        self._accept_at: float | None = None

    def strike(self) -> None:
        now = time.monotonic()
        self._make_good(now)
        if now < self._next or len(self.crew.ready) < len(self.crew.processes):
            return
        self._next = now + self.rng.uniform(*BETWEEN)
        faults = [self._stop, self._kill] if self.proxy is None else [self._stop, self._kill, *[self._lose] * 6, self._cut]
        self.rng.choice(faults)(now)

    def _make_good(self, now: float, *, all_of_it: bool = False) -> None:
        for moment, process in list(self._wake):
            if all_of_it or moment <= now:
                self._wake.remove((moment, process))
                process.go_on()
        if self.proxy is not None and self._accept_at is not None and (all_of_it or self._accept_at <= now):
            self._accept_at = None
            self.proxy.accept()

    def rest(self) -> None:
        """Everything that was stopped goes on."""
        self._make_good(0.0, all_of_it=True)

    def _stop(self, now: float) -> None:
        process = self.rng.choice(sorted(self.crew.ready, key=lambda one: one.nth))
        if not process.stopped:
            process.stop()
            self._wake.append((now + self.rng.uniform(*STOPPED), process))
            self.did["processes stopped"] += 1

    def _kill(self, now: float) -> None:
        if self.did["processes killed"] < self.kills and self.rng.random() < 0.2:
            self.rng.choice(sorted(self.crew.ready, key=lambda one: one.nth)).kill()
            self.did["processes killed"] += 1

    def _lose(self, now: float) -> None:
        self.proxy.drop_next_reply(skip=self.rng.randrange(4))
        self.did["replies to be lost"] += 1

    def _cut(self, now: float) -> None:
        if self.rng.random() < 0.5:
            self.proxy.cut()
            self.did["connections cut"] += 1
        elif self._accept_at is None and self.rng.random() < 0.3:
            self.proxy.refuse()
            self.proxy.cut()
            self._accept_at = now + REFUSED
            self.did["server out of reach"] += 1
