"""F4: `kill -9` of PostgreSQL and all its processes while four others write to it."""

from __future__ import annotations

import pytest

from tests.acceptance.places import PostgresPlace
from tests.faults.catalogue.siege import Siege
from tests.faults.finding import Finding
from tests.faults.trial import Trial
from tests.servers import PostgresServer
from twiceproof.stores.base import Engine

TITLE = "PostgreSQL killed under four writers"
KILLS = 100
CONTROL_KILLS = 2
CONTROL_TRIES = 5
LAZY = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}


def run(trial: Trial, finding: Finding) -> None:
    if "postgres" not in trial.stores:
        finding.skipped.append("PostgreSQL: not among the stores of this run")
        return
    kills = trial.times(KILLS, 5)
    with trial.place("postgres") as place:
        siege = Siege(place, trial.postgres, trial.dice("F4"), "PostgreSQL")
        siege.report(finding, siege.lay(kills))
    finding.reach("PostgreSQL killed", kills, siege.kills)
    control(trial, finding)


class UncheckedPlace(PostgresPlace):
    """The protection taken away: opened although the server answers before its log is on the disk."""

    def engine(self) -> Engine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("twiceproof.stores.postgres.engine.refuse_unsafe", lambda *_: None)
            return super().engine()


def control(trial: Trial, finding: Finding) -> None:
    """Tried several times if necessary: after ten seconds even a lazy log is on disk, and a busy machine may need that
    long to kill the server.
    """
    with PostgresServer(LAZY) as server:
        tries = (_lost(trial, server, nth) for nth in range(CONTROL_TRIES))
        finding.control("synchronous_commit = on", next(filter(None, tries), ""))


def _lost(trial: Trial, server: PostgresServer, nth: int) -> str:
    here = trial.directory / f"lazy-{nth}"
    here.mkdir()
    place = UncheckedPlace(server.create_database(), here)
    place.app().close()
    server.restart()  # the schema is on disk before the server dies
    siege = Siege(place, server, trial.dice(f"F4 control {nth}"), "lazy PostgreSQL")
    wrong = siege.lay(CONTROL_KILLS, between=(200, 300))
    lost = sum(complaint.startswith(("acknowledged and lost", "done twice", "done again")) for complaint in wrong)
    return f"{lost} of {len(siege.accounts.heard)} acknowledged lost or repeated" if lost else ""
