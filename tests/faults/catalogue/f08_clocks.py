"""F8: clocks that are wrong: workers ahead, behind and set in the middle, summer time, a database that jumps."""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
from typing import Any

from msgspec import structs

from tests.acceptance.children import Child
from tests.acceptance.wrappers import Wrapped
from tests.faults.catalogue.clock_scenes import SCENES, SHIFTS, Scenes
from tests.faults.finding import Finding
from tests.faults.more_stores import FLOWS
from tests.faults.trial import NAMES, Trial
from tests.servers.process import Unavailable
from twiceproof.records import Conflict

TITLE = "clocks that are wrong"
RUNS = 300
CONTROL_RUNS = 21
PLENTY = 300


def run(trial: Trial, finding: Finding) -> None:
    if shutil.which("faketime") is None:
        finding.skipped.append(
            "faketime on a whole PostgreSQL: not here; its clock is moved by twiceproof_now() instead"
        )
    runs = -(-trial.times(RUNS, 30) // len(trial.stores))
    done = 0
    for at, store in enumerate(trial.stores_and(*FLOWS)):
        plan = [drawn(number, at) for number in range(runs)]
        try:
            wrong = played(trial, store, plan)
        except Unavailable as error:
            finding.skipped.append(f"{NAMES[store]}: {error}")
            continue
        for sentence in wrong:
            finding.violated(f"{NAMES[store]}, seed {trial.seed}: {sentence}")
        for scene, shift in plan:
            finding.hit(f"scene: {scene}")
            finding.hit(f"worker's clock: {shift}")
        done += len(plan)
        finding.count(f"runs, {NAMES[store]}", len(plan))
    finding.reach("runs", trial.times(RUNS), done)
    wrong = played(trial, trial.stores[0], [drawn(number, 0) for number in range(CONTROL_RUNS)], OwnTime)
    finding.control("the store's time, for that of the worker", f"{len(wrong)} broken promises" if wrong else "")


def drawn(number: int, store: int) -> tuple[str, str]:
    """Every scene with every clock, in another order for each store."""
    turn = number + store * 10
    scenes, shifts = list(SCENES), list(SHIFTS)
    return scenes[turn % len(scenes)], shifts[(turn + turn // len(scenes)) % len(shifts)]


def played(
    trial: Trial, store: str, plan: list[tuple[str, str]], wrap: Any = lambda engine, clock: engine
) -> list[str]:
    """In a process of its own."""
    with trial.place(store) as place:

        def work(child: Child) -> None:
            signal.alarm(PLENTY)
            logging.disable(logging.ERROR)
            with contextlib.closing(Scenes(place, wrap)) as scenes:
                for number, (scene, shift) in enumerate(plan):
                    scenes.play(scene, number, shift)
                child.tell(scenes.wrong)

        child = Child(work)
        told = child.hear()
        ended = child.end()
    return [f"broke off: it ended with {ended}"] if told is None else told


class OwnTime(Wrapped):
    """The protection taken away: leases are judged by the worker's clock instead of the store's."""

    def __init__(self, inner: Any, clock: Any) -> None:
        super().__init__(inner)
        self._clock = clock

    def fetch(self, addresses: Any) -> Any:
        return [structs.replace(found, now=self._clock.now()) for found in self.inner.fetch(addresses)]

    def commit(self, batches: Any) -> Any:
        return [
            structs.replace(answer, now=self._clock.now()) if isinstance(answer, Conflict) else answer
            for answer in self.inner.commit(batches)
        ]
