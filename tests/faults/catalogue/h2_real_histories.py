"""H2: histories of real processes on each store, while some are stopped or killed and replies are lost."""

from __future__ import annotations

import tempfile

from tests.faults.finding import Finding
from tests.faults.histories_real import record
from tests.faults.trial import NAMES, Trial

TITLE = "claims by five processes on a real store: is there one order that explains every answer?"
HISTORIES = 500  # on each store
SHORTER = 250  # of which a short run has its share
OPERATIONS = 40  # in each, at least
CONTROL = 20


def run(trial: Trial, finding: Finding) -> None:
    for store in trial.stores:
        histories = HISTORIES if trial.share >= 1 else trial.times(SHORTER)
        with tempfile.TemporaryDirectory(dir=trial.directory) as here:
            summary = record(_url(trial, store, here), trial.seed, histories)
        finding.reach(f"histories, {NAMES[store]}", histories, summary.histories)
        finding.reach(f"operations, {NAMES[store]}", histories * OPERATIONS, summary.operations)
        finding.unknown.extend(summary.unknown)
        for fault, times in summary.faults.items():
            finding.count(fault, times)
        for violation in summary.violations:
            finding.violated(f"{NAMES[store]}, seed {trial.seed}: {violation}")
    _control(trial, finding)


def _control(trial: Trial, finding: Finding) -> None:
    with tempfile.TemporaryDirectory(dir=trial.directory) as here:
        blind = record(_url(trial, "sqlite", here), trial.seed, CONTROL, blind=True)
    finding.control(
        "the fence, SQLite", f"{len(blind.violations)} of {blind.histories} rejected" if blind.violations else ""
    )


def _url(trial: Trial, store: str, here: str) -> str:
    if store == "sqlite":
        return f"sqlite:///{here}/claims.db"
    if store == "postgres":
        return trial.postgres.create_database()
    trial.valkey.empty()
    return trial.valkey.url
