"""F1: a worker killed before, in and after each commit of the ledger, and once more while another one recovers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count

from msgspec import structs

from tests.acceptance.places import Place
from tests.faults.catalogue.killing.deadly import BEFORE, LANDED, POSITIONS
from tests.faults.catalogue.killing.rotation import Rotation
from tests.faults.catalogue.killing.round import Played, Round
from tests.faults.catalogue.killing.scene import Case, Scene
from tests.faults.catalogue.killing.scenes import SCENES
from tests.faults.catalogue.killing.total import Total, apart
from tests.faults.finding import Finding
from tests.faults.trial import NAMES, Trial
from twiceproof.effects import repeat

TITLE = "a worker killed at each boundary of the ledger"
KILLS = {"sqlite": 12_000, "postgres": 3_000, "valkey": 3_000}
AGAIN = 2_000  # of these, while another kill is being recovered from
SHARE_AGAIN = 0.18  # of the cases; where nothing is left to commit, no process dies
SHORTER = 0.35  # of its share is in a short run: one process per kill is the most expensive part
ROTATE_EVERY = 4  # rounds
NOT_YET = "inbox insert, reconcile read and write: the product does not have them yet; the outbox is F17's"


def run(trial: Trial, finding: Finding) -> None:
    finding.skipped.append(NOT_YET)
    part = 1.0 if trial.share >= 1 else SHORTER
    again = sum(kill(trial, finding, store, trial.times(round(part * KILLS[store]))) for store in trial.stores)
    whole = part * sum(KILLS[store] for store in trial.stores) / sum(KILLS.values())
    finding.reach("killed again in the recovery", trial.times(round(AGAIN * whole)), again)
    control(trial, finding)


def kill(trial: Trial, finding: Finding, store: str, least: int) -> int:
    scenes = [scene for scene in SCENES if store in scene.stores]
    for scene in SCENES:
        if scene not in scenes:
            points = ", ".join(point.name for point in scene.points)
            finding.skipped.append(f"{points}, {NAMES[store]}: it has no transactions of a user's own")
    total = Total(trial, store, finding)
    for number in count():
        dice = trial.dice("F1", store, number)
        cases = some(list(drawn(scenes, dice)), least - total.played.kills, dice)
        total.add(f"round {number}", partial(played, scenes, cases))
        if number % ROTATE_EVERY == 0:
            total.add(f"rotation {number}", lambda place: Rotation(place).play())
        if total.played.kills >= least or total.played.unknown:
            break
    total.tell()
    finding.reach(f"kills, {NAMES[store]}", least, total.played.kills)
    return total.played.again


def played(scenes: Sequence[type[Scene]], cases: Sequence[Case], place: Place) -> Played:
    return Round(place, scenes, cases).play()


def drawn(scenes: Sequence[type[Scene]], dice: random.Random) -> Iterator[Case]:
    """Every point in every position. Which recoveries are killed as well, and where, is drawn at random."""
    orders = count(1)
    for scene in scenes:
        for point in scene.points:
            for position in POSITIONS:
                again = dice.choice((1, 1, 2, 3)) if dice.random() < SHARE_AGAIN else 0
                yield Case(scene.name, point.name, position, next(orders), again, dice.choice((BEFORE, LANDED)))


def some(cases: list[Case], most: int, dice: random.Random) -> list[Case]:
    """Return cases for the last round: the number that is left, consecutive from a random start."""
    if most >= len(cases):
        return cases
    first = dice.randrange(len(cases) - most + 1)
    return cases[first : first + most]


def control(trial: Trial, finding: Finding) -> None:
    """Without the recorded start, work killed between its effect and its record is done again."""
    scenes = [scene for scene in SCENES if scene.name == "errand"]
    cases = [case for case in drawn(scenes, trial.dice("control")) if case.point.startswith("effect of a step never")]

    def bare(place: Place) -> Played:
        repeat.Declared.writes_intent = property(lambda self: False)  # type: ignore[method-assign,assignment]
        return Round(place, scenes, [structs.replace(case, again=0) for case in cases]).play()

    wrong = [what for what in apart(trial, trial.stores[0], bare).violations if "each once" in what]
    finding.control("the intent before a step never repeated", "; ".join(wrong[:2]))
