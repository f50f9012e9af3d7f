"""F5: `kill -9` of Valkey while four processes write to it, and replicas that are promoted in its place."""

from __future__ import annotations

import contextlib

from tests.acceptance.places import RedisPlace
from tests.faults.catalogue.promotions import Promotions
from tests.faults.catalogue.siege import Siege
from tests.faults.finding import Finding
from tests.faults.trial import Trial
from tests.servers import ValkeyServer

TITLE = "Valkey killed under four writers, and replicas promoted"
KILLS = 100
PROMOTIONS = 30
CONTROL_KILLS = 2
CONTROL_PROMOTIONS = 2


def run(trial: Trial, finding: Finding) -> None:
    if "valkey" not in trial.stores:
        finding.skipped.append("Valkey: not among the stores of this run")
        return
    killed(trial, finding)
    forgetful(trial, finding)
    promoted(trial, finding)
    trusting(trial, finding)


def killed(trial: Trial, finding: Finding) -> None:
    kills = trial.times(KILLS, 5)
    with trial.place("valkey") as place:
        siege = Siege(place, trial.valkey, trial.dice("F5"), "Valkey")
        siege.report(finding, siege.lay(kills))
    finding.reach("Valkey killed", kills, siege.kills)


def forgetful(trial: Trial, finding: Finding) -> None:
    """The protection taken away: a server that keeps nothing on its disk is not refused."""
    here = trial.directory / "forgetful"
    here.mkdir()
    with ValkeyServer({"appendonly": "no", "save": ""}) as server:
        place = RedisPlace(f"{server.url}?durability=cache", here)
        place.app().close()
        siege = Siege(place, server, trial.dice("F5 control"), "forgetful Valkey")
        wrong = siege.lay(CONTROL_KILLS, between=(100, 200))
    lost = sum(complaint.startswith(("acknowledged and lost", "done twice", "done again")) for complaint in wrong)
    heard = len(siege.accounts.heard)
    finding.control("append-only file", f"{lost} of {heard} acknowledged lost or repeated" if lost else "")


def promoted(trial: Trial, finding: Finding) -> None:
    times = trial.times(PROMOTIONS, 3)
    with contextlib.closing(Promotions(trial.dice("F5 promotions"))) as pair:
        for nth in range(times):
            pair.turn(nth)
    for complaint in pair.wrong:
        finding.violated(f"Valkey, seed {finding.seed}: {complaint}")
    finding.reach("promotions, Valkey", times, min(pair.refused_open, pair.refused_opening))
    finding.hit("promotion refused by a store that is open", pair.refused_open)
    finding.hit("promotion refused at opening", pair.refused_opening)
    finding.count("acknowledged writes that the promoted replicas lacked", pair.lost)


def trusting(trial: Trial, finding: Finding) -> None:
    """The protection taken away: a server that took over is used without being checked."""
    with contextlib.closing(Promotions(trial.dice("F5 trusting"), strict=False)) as pair:
        for nth in range(CONTROL_PROMOTIONS):
            pair.turn(nth)
    again = [complaint for complaint in pair.wrong if complaint.startswith("done again")]
    finding.control("refusal of promoted replicas", "; ".join(again))
