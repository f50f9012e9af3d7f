"""F1: a worker killed before, unheard after, and right after each boundary of the ledger, and again in the recovery."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from tests.acceptance.children import Child
from tests.prove.faults.killing.claim_scenes import CLAIM_SCENES
from tests.prove.faults.killing.deadly import BEFORE, LANDED, POSITIONS
from tests.prove.faults.killing.keeping_scenes import KEEPING_SCENES
from tests.prove.faults.killing.rotation import Rotation
from tests.prove.faults.killing.round import Played, Round
from tests.prove.faults.killing.run_scenes import RUN_SCENES
from tests.prove.faults.killing.scene import Case, Scene
from tests.prove.faults.killing.trigger_scenes import TRIGGER_SCENES
from tests.prove.faults.killing.wait_scenes import WAIT_SCENES
from tests.prove.finding import Finding
from tests.prove.trial import NAMES, Trial
from twiceproof.flows import repeat

TITLE = "a worker killed at each boundary of the ledger"
KILLS = {"sqlite": 12_000, "postgres": 3_000, "valkey": 3_000}
AGAIN = 2_000  # of these, while another kill is being recovered from
SHARE_AGAIN = 0.25  # of the cases; where there is nothing left to commit, nobody dies
SCENES = (*CLAIM_SCENES, *RUN_SCENES, *WAIT_SCENES, *TRIGGER_SCENES, *KEEPING_SCENES)
ROTATE_EVERY = 4  # rounds
NOT_YET = "outbox insert, publish, publish-ack, inbox insert and reconcile: the product does not have them yet"


def run(trial: Trial, finding: Finding) -> None:
    finding.skipped.append(NOT_YET)
    again = 0
    for store in trial.stores:
        again += kill(trial, finding, store, trial.times(KILLS[store]))
    whole = sum(KILLS[store] for store in trial.stores) / sum(KILLS.values())
    finding.reach("killed again in the recovery", trial.times(round(AGAIN * whole)), again)
    control(trial, finding)


def kill(trial: Trial, finding: Finding, store: str, least: int) -> int:
    scenes = [scene for scene in SCENES if store in scene.stores]
    finding.skipped.extend(f"{scene.name}: not on {NAMES[store]}" for scene in SCENES if scene not in scenes)
    total = Played()
    for number in count():
        cases = list(drawn(scenes, trial.dice("F1", store, number)))
        add(total, play(trial, store, lambda place, cases=cases: Round(place, scenes, cases).play()), f"round {number}")
        if number % ROTATE_EVERY == 0:
            add(total, play(trial, store, lambda place: Rotation(place).play()), f"rotation {number}")
        if total.kills >= least:
            break
    for point, times in total.hits.items():
        finding.hit(point, times)
    finding.violations += [f"{NAMES[store]}, seed {trial.seed}, {what}" for what in total.violations]
    finding.unknown += [f"{NAMES[store]}, seed {trial.seed}, {what}" for what in total.unknown]
    finding.reach(f"kills, {NAMES[store]}", least, total.kills)
    return total.again


def drawn(scenes: Sequence[type[Scene]], dice: random.Random) -> Iterator[Case]:
    """Every point in every position; which of them die again, and where, is drawn."""
    orders = count(1)
    for scene in scenes:
        for point in scene.points:
            for position in POSITIONS:
                again = dice.choice((1, 1, 2, 3)) if dice.random() < SHARE_AGAIN else 0
                yield Case(scene.name, point.name, position, next(orders), again, dice.choice((BEFORE, LANDED)))


def play(trial: Trial, store: str, work: Callable[[Any], Played]) -> Played:
    """In a process of its own: what it opens and patches is gone with it."""
    with trial.place(store) as place:
        child = Child(lambda child: child.tell(msgspec.to_builtins(work(place))))
        heard = child.hear()
        if child.end() or heard is None:
            return Played(unknown=["the round broke off"])
        return msgspec.convert(heard, Played)


def add(total: Played, played: Played, name: str) -> None:
    total.kills += played.kills
    total.again += played.again
    for point, times in played.hits.items():
        total.hits[point] = total.hits.get(point, 0) + times
    total.violations += [f"{name}: {what}" for what in played.violations]
    total.unknown += [f"{name}: {what}" for what in played.unknown]


def control(trial: Trial, finding: Finding) -> None:
    """Without the intent, what was cut off between effect and record is done again, blindly."""
    scenes = [scene for scene in RUN_SCENES if scene.name == "errand"]
    cases = [case for case in drawn(scenes, trial.dice("control")) if case.point.startswith("effect of a step never")]

    def bare(place: Any) -> Played:
        repeat.Declared.writes_intent = property(lambda self: False)  # type: ignore[method-assign,assignment]
        return Round(place, scenes, [msgspec.structs.replace(case, again=0) for case in cases]).play()

    played = play(trial, trial.stores[0], bare)
    finding.control("the intent before a step never repeated", "; ".join(played.violations[:2]))
