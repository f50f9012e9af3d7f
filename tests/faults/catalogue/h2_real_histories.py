"""H2: histories of real processes on each store, while some are stopped or killed and replies are lost."""

from __future__ import annotations

import tempfile
from secrets import token_hex

from tests.faults import histories_real
from tests.faults.finding import Finding
from tests.faults.histories.summary import Summary
from tests.faults.linearizability import Model
from tests.faults.trial import NAMES, Trial
from tests.servers.process import Unavailable

TITLE = "claims by five processes on a real store: is there one order that explains every answer?"
HISTORIES = 500  # on each store
SHORTER = 250  # of which a short run has its share
OPERATIONS = 40  # in each, at least
CONTROL = 20
CONTROLLED = ("sqlite", "mariadb", "galera", "etcd")
SHARED = ("mariadb", "galera", "etcd")  # where they are installed
SECOND = 1_000_000_000
# etcd names whole seconds, by which two processes may judge the end of a lease apart. On Galera the fences of a key
# grow only while its record exists: a removal and an insert on another node can draw theirs in the other order.
MODELS = {
    "etcd": Model(slack=3 * SECOND // 2),
    "galera": Model(slack=histories_real.SLACK, outlives=False),
}


def run(trial: Trial, finding: Finding) -> None:
    """Clusters take long to start: a full run has them."""
    for store in trial.stores_and(*SHARED):
        try:
            _histories(trial, finding, store)
        except Unavailable as error:
            finding.skipped.append(str(error))
            continue
        if store in CONTROLLED:
            _control(trial, finding, store)


def _histories(trial: Trial, finding: Finding, store: str) -> None:
    histories = HISTORIES if trial.share >= 1 else trial.times(SHORTER)
    summary = _recorded(trial, store, histories)
    finding.reach(f"histories, {NAMES[store]}", histories, summary.histories)
    finding.reach(f"operations, {NAMES[store]}", histories * OPERATIONS, summary.operations)
    finding.unknown.extend(summary.unknown)
    for fault, times in summary.faults.items():
        finding.count(fault, times)
    for violation in summary.violations:
        finding.violated(f"{NAMES[store]}, seed {trial.seed}: {violation}")


def _control(trial: Trial, finding: Finding, store: str) -> None:
    blind = _recorded(trial, store, CONTROL, blind=True)
    rejected = f"{len(blind.violations)} of {blind.histories} rejected" if blind.violations else ""
    finding.control(f"the fence, {NAMES[store]}", rejected)


def _recorded(trial: Trial, store: str, histories: int, *, blind: bool = False) -> Summary:
    with tempfile.TemporaryDirectory(dir=trial.directory) as here:
        urls = _urls(trial, store, here)
        model = MODELS.get(store, histories_real.MODEL)
        return histories_real.record(*urls, seed=trial.seed, histories=histories, blind=blind, model=model)


def _urls(trial: Trial, store: str, here: str) -> list[str]:
    """Return the URLs; for a cluster one for each node, over which the processes are spread."""
    if store == "sqlite":
        return [f"sqlite:///{here}/claims.db"]
    if store == "postgres":
        return [trial.postgres.create_database()]
    if store == "mariadb":
        return [trial.mariadb.create_database()]
    if store == "galera":
        name = trial.galera.create_database()
        return [node.url(name) for node in trial.galera.nodes]
    if store == "etcd":
        prefix = token_hex(6)
        return [f"etcd://{member.host}:{member.port}/{prefix}" for member in trial.etcd.members]
    trial.valkey.empty()
    return [trial.valkey.url]
