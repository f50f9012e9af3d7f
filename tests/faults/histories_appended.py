"""Simulated histories of batches: lists in one space that many callers read and append to."""

from __future__ import annotations

import time
from random import Random

from tests.faults.histories.appender import Appender
from tests.faults.histories.mutants import HEALTHY, Mutant
from tests.faults.histories.summary import Summary
from tests.faults.histories.world import Seat, World
from tests.faults.histories_simulated import CALLERS, OPERATIONS, take_seats
from tests.faults.linearizability import Append, check_appends


def simulate_appends(seed: int, histories: int, *, mutant: Mutant = HEALTHY, stop_early: bool = False) -> Summary:
    """Histories `seed`, `seed + 1`, …, each judged."""
    began = time.monotonic()
    summary = Summary(f"appended ({mutant.name})", seed)
    for one in range(seed, seed + histories):
        history = play_appends(one, mutant)
        checked = time.monotonic()
        anomalies = check_appends(history).anomalies
        summary.checking += time.monotonic() - checked
        summary.count(len(history), sum(batch.landed is None for batch in history))
        summary.violations.extend(f"seed {one}: {anomaly}" for anomaly in anomalies[:1])
        if stop_early and anomalies:
            break
    summary.seconds = time.monotonic() - began
    return summary


def play_appends(seed: int, mutant: Mutant = HEALTHY) -> list[Append]:
    rng = Random(seed)
    history: list[Append] = []
    count = [0]
    world = World(rng, take_seats(mutant)[: rng.randint(*CALLERS)], mutant.engine)

    def caller(seat: Seat, death: int) -> Appender:
        name = f"c{seat.nth}" + (f"-{death}" if death else "")
        return Appender(name, seat.store, seat.tries, rng, history, count)

    world.run(caller, rng.randint(*OPERATIONS))
    return history
