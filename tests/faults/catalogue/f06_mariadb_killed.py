"""F6: `kill -9` of MariaDB while four processes write to it."""

from __future__ import annotations

from tests.acceptance.places import MariadbPlace
from tests.faults.catalogue.siege import Siege
from tests.faults.finding import Finding
from tests.faults.trial import Trial
from tests.servers.process import Unavailable
from twiceproof.stores.base import Engine

TITLE = "MariaDB killed under four writers"
KILLS = 100
CONTROL_KILLS = 5


def run(trial: Trial, finding: Finding) -> None:
    try:
        server = trial.mariadb
    except Unavailable as error:
        finding.skipped.append(str(error))
        return
    kills = trial.times(KILLS, 5)
    with trial.place("mariadb") as place:
        siege = Siege(place, server, trial.dice("F6"), "MariaDB")
        siege.report(finding, siege.lay(kills))
    finding.reach("MariaDB killed", kills, siege.kills)
    control(trial, finding)


class UncommittedPlace(MariadbPlace):
    """The protection taken away: a packet is answered without its COMMIT, which only the next packet's BEGIN causes."""

    def engine(self) -> Engine:
        engine = super().engine()
        sql = engine.sql  # type: ignore[attr-defined]
        commit = sql.commit
        sql.commit = lambda batches: commit(batches)[:-1]
        return engine


def control(trial: Trial, finding: Finding) -> None:
    here = trial.directory / "uncommitted-mariadb"
    here.mkdir()
    place = UncommittedPlace(trial.mariadb.create_database(), here)
    place.app().close()
    siege = Siege(place, trial.mariadb, trial.dice("F6 control"), "MariaDB without COMMIT")
    wrong = siege.lay(CONTROL_KILLS)
    lost = sum(complaint.startswith(("acknowledged and lost", "done twice", "done again")) for complaint in wrong)
    answered = len(siege.accounts.heard)
    finding.control("the COMMIT in the packet", f"{lost} of {answered} acknowledged lost or repeated" if lost else "")
