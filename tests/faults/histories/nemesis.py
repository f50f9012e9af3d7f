"""What goes wrong while real histories are made: processes stopped and killed, answers lost, connections cut."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from tests.faults.histories.crew import Crew, Process
from tests.servers.proxy import FaultProxy

BETWEEN = (8, 40)  # operations between two faults, so that a slow machine has no more faults than a fast one
STOPPED = (0.03, 0.15)
REFUSED = 0.3  # longer than a member's patience


class Nemesis:
    """`strike` is called for each operation, and sometimes begins a fault; `make_good` ends it in time."""

    def __init__(self, rng: Random, crew: Crew, proxies: Sequence[FaultProxy], kills: int) -> None:
        self.rng = rng
        self.crew = crew
        self.proxies = proxies
        self.kills = kills
        self.did: Counter[str] = Counter()
        self._left = BETWEEN[0]
        self._wake: list[tuple[float, Process]] = []
        self._accept_at: float | None = None
        self._refusing: FaultProxy | None = None

    def strike(self) -> None:
        self._left -= 1
        if self._left > 0 or len(self.crew.ready) < len(self.crew.processes):
            return
        self._left = self.rng.randint(*BETWEEN)
        faults = [self._stop, self._kill]
        if self.proxies:
            faults += [*[self._lose] * 6, self._cut, self._refuse]
        self.rng.choice(faults)(time.monotonic())

    def make_good(self, *, everything: bool = False) -> None:
        now = time.monotonic()
        for moment, process in list(self._wake):
            if everything or moment <= now:
                self._wake.remove((moment, process))
                process.go_on()
        if self._refusing is not None and self._accept_at is not None and (everything or self._accept_at <= now):
            self._refusing.accept()
            self._accept_at = self._refusing = None

    def _stop(self, now: float) -> None:
        process = self.rng.choice(sorted(self.crew.ready, key=lambda one: one.nth))
        if not process.stopped:
            process.stop()
            self._wake.append((now + self.rng.uniform(*STOPPED), process))
            self.did["processes stopped"] += 1

    def _kill(self, now: float) -> None:
        if self.did["processes killed"] < self.kills and self.rng.random() < 0.5:
            self.rng.choice(sorted(self.crew.ready, key=lambda one: one.nth)).kill()
            self.did["processes killed"] += 1

    def _lose(self, now: float) -> None:
        self._any().drop_next_reply(skip=self.rng.randrange(4))
        self.did["replies to be lost"] += 1

    def _cut(self, now: float) -> None:
        self._any().cut()
        self.did["connections cut"] += 1

    def _refuse(self, now: float) -> None:
        if self._accept_at is None and self.rng.random() < 0.5:
            self._refusing = self._any()
            self._refusing.refuse()
            self._refusing.cut()
            self._accept_at = now + REFUSED
            self.did["server out of reach"] += 1

    def _any(self) -> FaultProxy:
        return self.proxies[0] if len(self.proxies) == 1 else self.rng.choice(self.proxies)
