"""The results of all rounds of a fault in one store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tests.acceptance.children import Child
from tests.faults.catalogue.killing.round import Played
from tests.faults.finding import Finding
from tests.faults.trial import NAMES, Trial

__all__ = ["Total", "apart"]

MOST = 40  # violations that are reported; the others are only counted


def apart(trial: Trial, store: str, work: Callable[[Any], Played]) -> Played:
    """Run with an empty store, in a process of its own: whatever it opens and patches ends with it."""
    with trial.place(store) as place:
        child = Child(lambda child: child.tell(msgspec.to_builtins(work(place))))
        heard = child.hear()
        if child.end() or heard is None:
            return Played(unknown=["the round broke off"])
        return msgspec.convert(heard, Played)


class Total:
    """Adds up, for a finding. Where one broken promise is enough, the first round that saw one is the last."""

    def __init__(self, trial: Trial, store: str, finding: Finding) -> None:
        self.trial = trial
        self.store = store
        self.finding = finding
        self.played = Played()

    def add(self, name: str, work: Callable[[Any], Played]) -> None:
        played, total = apart(self.trial, self.store, work), self.played
        total.kills += played.kills
        total.again += played.again
        for point, times in played.hits.items():
            total.hits[point] = total.hits.get(point, 0) + times
        where = f"{NAMES[self.store]}, seed {self.trial.seed}, {name}"
        total.violations += [f"{where}: {what}" for what in played.violations]
        total.unknown += [f"{where}: {what}" for what in played.unknown]
        if total.violations and self.finding.one_is_enough:
            self.finding.violated(total.violations[0])

    def tell(self) -> None:
        finding = self.finding
        for point, times in self.played.hits.items():
            finding.hit(point, times)
        finding.violations += self.played.violations[:MOST]
        if len(self.played.violations) > MOST:
            finding.violated(f"{NAMES[self.store]}: and {len(self.played.violations) - MOST} more")
        finding.unknown += self.played.unknown[:MOST]
