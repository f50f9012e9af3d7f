"""Simulated histories: the real claims on the memory store, many callers, every fault drawn from a seed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

from msgspec import json

from tests.faults.histories.claimant import Claimant, Pace
from tests.faults.histories.mutants import HEALTHY, Mutant
from tests.faults.histories.summary import Summary
from tests.faults.histories.world import SECOND, Seat, World
from tests.faults.linearizability import Operation, check

PACE = Pace(SECOND, lease=(24, 80), keep=(40, 160))
CALLERS, OPERATIONS, KEYS = (5, 10), (40, 100), (1, 3)
REPEAT_EVERY = 100


def simulate(seed: int, histories: int, *, mutant: Mutant = HEALTHY, stop_early: bool = False) -> Summary:
    """Histories `seed`, `seed + 1`, …, each judged; every hundredth is played twice and must come out the same."""
    began = time.monotonic()
    summary = Summary(f"simulated ({mutant.name})", seed)
    for one in range(seed, seed + histories):
        history = play(one, mutant)
        checked = time.monotonic()
        summary.add(history, check(history), f"seed {one}")
        summary.checking += time.monotonic() - checked
        if one % REPEAT_EVERY == 0:
            summary.repeated += 1
            summary.violations.extend(_differences(one, history, play(one, mutant)))
        if stop_early and not summary.holds:
            break
    summary.seconds = time.monotonic() - began
    return summary


def take_seats(mutant: Mutant = HEALTHY) -> list[Seat]:
    return [Seat(nth, mutant.store) for nth in range(CALLERS[1])]


def play(seed: int, mutant: Mutant = HEALTHY) -> list[Operation]:
    """Run one history. The same seed gives the same history, byte for byte, on stores without a memory of other
    clocks.
    """
    rng = Random(seed)
    history: list[Operation] = []
    keys = [f"key{nth}" for nth in range(rng.randint(*KEYS))]
    world = World(rng, take_seats(mutant)[: rng.randint(*CALLERS)], mutant.engine)

    def caller(seat: Seat, death: int) -> Claimant:
        name = f"c{seat.nth}" + (f"-{death}" if death else "")
        claims = mutant.claims(seat.store, clock=seat.clock)
        return Claimant(name, claims, seat.tries, keys, PACE, rng, history)

    world.run(caller, rng.randint(*OPERATIONS))
    return history


def _differences(seed: int, first: list[Operation], second: list[Operation]) -> Iterator[str]:
    if json.encode(first) != json.encode(second):
        yield f"seed {seed}: played twice, it came out differently; something reads the clock or the dice by itself"
