"""F9: workers stopped with SIGSTOP past their lease and continued: what they write then is refused, all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, cycle, islice
from typing import Any

from tests.acceptance.wrappers import LedgerBlind
from tests.prove.faults.killing.deadly import BEFORE, LANDED
from tests.prove.faults.killing.round import Played
from tests.prove.faults.killing.scene import Case, Scene
from tests.prove.faults.killing.scenes import SCENES
from tests.prove.faults.killing.total import Total, apart
from tests.prove.faults.killing.zombies import Zombies
from tests.prove.finding import Finding
from tests.prove.trial import NAMES, Trial

TITLE = "a worker stopped past its lease and woken up late"
ZOMBIES = 500  # in each store
ROUND = 48  # stopped at once; fewer than there are points, or one would be there twice
BLIND = ("effect of a guarded call", "complete", "large result", "fail", "fail for good", "renew")  # the fence alone
IN_TRANSACTION = "stopped inside its own transaction: the database holds the row, and nobody can take over meanwhile"


def run(trial: Trial, finding: Finding) -> None:
    finding.skipped.append(IN_TRANSACTION)
    scenes = [scene for scene in SCENES if scene.name != "joined"]
    for store in trial.stores:
        least = trial.times(ZOMBIES)
        total = Total(trial, store)
        points = cycle(stopped(scenes))
        for number in count():
            cases = sorted(islice(points, min(ROUND, least - total.played.kills)), key=lambda case: case.order)
            total.add(f"round {number}", lambda place, cases=cases: Zombies(place, scenes, cases).play())
            if total.played.kills >= least or total.played.unknown:
                break
        total.tell(finding)
        finding.reach(f"zombies, {NAMES[store]}", least, total.played.kills)
        control(trial, finding, store)


def stopped(scenes: Sequence[type[Scene]]) -> Iterator[Case]:
    """Before each commit that it had decided on, and between each effect and its record."""
    orders = count(1)
    for scene in scenes:
        for point in scene.points:
            yield Case(scene.name, point.name, LANDED if point.meant is None else BEFORE, next(orders))


def control(trial: Trial, finding: Finding, store: str) -> None:
    """Whatever fence they show is taken for the right one: each of them writes over what was recorded."""
    cases = [case for case in stopped(SCENES) if case.point in BLIND]
    scenes = [scene for scene in SCENES if scene.name in {case.scene for case in cases}]

    def blind(place: Any) -> Played:
        return Zombies(place, scenes, cases, LedgerBlind).play()

    played = apart(trial, store, blind)
    clobbered = sum("was accepted" in what for what in played.violations)
    told = f"{clobbered} of {len(cases)} zombies wrote" if clobbered == len(cases) else ""
    finding.control(f"the fence, {NAMES[store]}", told)
    if not told:
        finding.count(f"clobbered without the fence, {NAMES[store]}, of {len(cases)}", clobbered)
