"""F9: workers stopped with SIGSTOP past their lease and continued: all their writes are refused then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, cycle, islice
from typing import Any

from msgspec import structs

from tests.acceptance.places import Place
from tests.acceptance.wrappers import LedgerBlind
from tests.faults.catalogue.killing.deadly import BEFORE, LANDED
from tests.faults.catalogue.killing.keeping_scenes import Joined
from tests.faults.catalogue.killing.round import Played
from tests.faults.catalogue.killing.scene import Case, Scene
from tests.faults.catalogue.killing.scenes import SCENES
from tests.faults.catalogue.killing.total import Total, apart
from tests.faults.catalogue.killing.zombies import Zombies
from tests.faults.finding import OFTEN, SELDOM, Finding
from tests.faults.trial import NAMES, Trial
from tests.servers.process import Unavailable

TITLE = "a worker stopped past its lease and woken up late"
ZOMBIES = 500  # in each store, at least
ROUND = 48  # stopped at once; fewer than there are points, so that no point occurs twice
TAKEN_OVER = ("errand", "undone", "batched", "renewed")  # where the other process makes more than one commit
SERVERS = ("mariadb", "etcd")  # on an emulator a round takes longer than the timers that are set in it
EARLY = 1_001  # their orders are numbered from here
BLIND = ("effect of a guarded call", "complete", "large result", "fail", "fail for good", "renew")  # the fence alone
IN_TRANSACTION = "stopped inside its own transaction: the database holds the row, and nobody can take over meanwhile"


def run(trial: Trial, finding: Finding) -> None:
    finding.skipped.append(IN_TRANSACTION)
    scenes = [scene for scene in SCENES if not issubclass(scene, Joined)]
    points = [*stopped(scenes), *stopped(scenes, early=True)]
    often = OFTEN if trial.share >= 1 else SELDOM
    least = trial.times(ZOMBIES, -(-often * len(points) // len(trial.stores)))
    for store in trial.stores_and(*SERVERS):
        try:
            stopped_past_their_lease(trial, finding, store, scenes, points, least)
        except Unavailable as error:
            finding.skipped.append(f"{NAMES[store]}: {error}")


def stopped_past_their_lease(
    trial: Trial, finding: Finding, store: str, scenes: Sequence[type[Scene]], points: Sequence[Case], least: int
) -> None:
    total, following = Total(trial, store, finding), cycle(points)
    for number in count():
        cases = sorted(islice(following, min(ROUND, least - total.played.kills)), key=lambda case: case.order)
        total.add(f"round {number}", partial(woken, scenes, cases))
        if total.played.kills >= least or total.played.unknown:
            break
    total.tell()
    finding.reach(f"zombies, {NAMES[store]}", trial.times(ZOMBIES), total.played.kills)
    control(trial, finding, store)


def woken(
    scenes: Sequence[type[Scene]], cases: Sequence[Case], place: Place, wrap: Any = lambda engine: engine
) -> Played:
    return Zombies(place, scenes, cases, wrap).play()


def stopped(scenes: Sequence[type[Scene]], *, early: bool = False) -> Iterator[Case]:
    """Stopped before each commit that it had decided on, and between each effect and its record.

    It wakes up when another process has finished its work, or earlier, while the other one is still working.
    """
    orders = count(EARLY if early else 1)
    for scene in scenes:
        for point in scene.points:
            case = Case(scene.name, point.name, LANDED if point.meant is None else BEFORE, next(orders))
            if not early:
                yield case
            elif scene.name in TAKEN_OVER:
                yield structs.replace(case, again=1)


def control(trial: Trial, finding: Finding, store: str) -> None:
    """Without the comparison of fences, each zombie overwrites what was recorded meanwhile."""
    cases = [case for case in stopped(SCENES) if case.point in BLIND]
    scenes = [scene for scene in SCENES if scene.name in {case.scene for case in cases}]

    played = apart(trial, store, partial(woken, scenes, cases, wrap=LedgerBlind))
    clobbered = sum("was accepted" in what for what in played.violations)
    told = f"{clobbered} of {len(cases)} zombies wrote" if clobbered == len(cases) else ""
    finding.control(f"the fence, {NAMES[store]}", told)
    if not told:
        finding.count(f"clobbered without the fence, {NAMES[store]}, of {len(cases)}", clobbered)
