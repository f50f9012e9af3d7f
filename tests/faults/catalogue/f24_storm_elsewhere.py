"""F24: the storm of F11 where somebody's data already is: 1,000 keys, 50 callers each, in four processes."""

from __future__ import annotations

from tests.faults.catalogue.f11_duplicate_storm import KEYS, on_a_store
from tests.faults.finding import Finding
from tests.faults.more_stores import MORE
from tests.faults.trial import NAMES, STORES, Trial
from tests.servers.process import Unavailable

TITLE = "a storm of duplicates on MariaDB, Galera, DynamoDB, Azure Table, etcd, Dataverse and SharePoint"


def run(trial: Trial, finding: Finding) -> None:
    """A short run has the first one."""
    chosen = tuple(store for store in trial.stores if store in MORE)
    for store in chosen or trial.stores_and(*MORE)[len(STORES) :]:
        try:
            on_a_store(trial, finding, store, trial.times(KEYS))
        except Unavailable as error:
            finding.skipped.append(f"{NAMES[store]}: {error}")
