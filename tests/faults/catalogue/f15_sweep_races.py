"""F15: keys are forgotten while late duplicates arrive, and re-encrypted while calls are under way."""

from __future__ import annotations

import contextlib
import logging
import signal
import warnings
from typing import Any

from tests.acceptance.children import Child
from tests.faults.catalogue.race_engine import VersionBlind
from tests.faults.catalogue.rotation_scenes import RotationScenes
from tests.faults.catalogue.sweep_scenes import SweepScenes
from tests.faults.finding import Finding
from tests.faults.trial import NAMES, Trial

TITLE = "retention and new keys, against late duplicates"
RACES = 1_000
LEAST = 840  # on three stores: each sweep scene occurs at every moment of the call that it interrupts
CONTROL_RACES = 40
PLENTY = 300


def run(trial: Trial, finding: Finding) -> None:
    races = -(-trial.times(RACES, LEAST) // (2 * len(trial.stores)))
    total = 0
    for at, store in enumerate(trial.stores):
        for scenes in (SweepScenes, RotationScenes):
            tried, wrong = played(trial, store, scenes, races, begin=trial.seed + 9 * at)
            for sentence in wrong:
                finding.violated(f"{NAMES[store]}, seed {trial.seed}: {sentence}")
            for scene, times in tried.items():
                finding.hit(scene, times)
            total += sum(tried.values())
    finding.reach("races", trial.times(RACES), total)
    for scenes in (SweepScenes, RotationScenes):
        _, wrong = played(trial, trial.stores[0], scenes, CONTROL_RACES, VersionBlind)
        finding.control(f"a {scenes.name} that does not look twice", f"{len(wrong)} broken promises" if wrong else "")


def played(
    trial: Trial, store: str, scenes: Any, races: int, wrap: Any = lambda engine: engine, begin: int = 0
) -> tuple[dict[str, int], list[str]]:
    """In a process of its own."""
    with trial.place(store) as place:

        def work(child: Child) -> None:
            signal.alarm(PLENTY)
            logging.disable(logging.ERROR)
            warnings.simplefilter("ignore")
            with contextlib.closing(scenes(place, begin, wrap)) as stage:
                stage.run(races)
                child.tell([stage.tried, stage.wrong])

        child = Child(work)
        told = child.hear()
        ended = child.end()
    tried, wrong = told or ({}, [f"{scenes.name}: broke off: it ended with {ended}"])
    return tried, wrong
