"""A process that continues after its disk has failed: what it acknowledged is there."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.acceptance.wrappers import Wrapped
from tests.faults.catalogue.killing.claim_scenes import Charge
from tests.faults.catalogue.killing.disk_faults import DiskFault
from tests.faults.catalogue.killing.outside import Outside
from tests.faults.catalogue.killing.round import Played, Round, forked
from tests.faults.catalogue.killing.run_scenes import Errand
from tests.faults.catalogue.killing.scene import LEASE, Case
from twiceproof import StoreError, TwiceproofError
from twiceproof.records import Batch, Written
from twiceproof.stores.base import Disconnected

__all__ = ["FullDisk", "Hopeful"]

EACH = 3  # orders that a process tries, one after the other


class Hopeful(Wrapped):
    """The protection taken away: an error of the disk is not passed on."""

    def commit(self, batches: Sequence[Batch]) -> Any:
        try:
            return self.inner.commit(batches)
        except (StoreError, Disconnected):
            return [Written("1", 1, 0.0) for _ in batches]


class FullDisk(Round):
    """Each fault is one process that tries a few orders. All answers are recorded outside of the product."""

    def __init__(
        self, place: Place, faults: Sequence[DiskFault], outside: Outside, wrap: Any = lambda engine: engine
    ) -> None:
        self.faults = faults
        orders = range(1, EACH * len(faults) + 1)
        cases = [self._case(scene.name, order) for order in orders for scene in (Charge, Errand)]
        super().__init__(place, (Charge, Errand), cases, wrap, outside)
        self.app.store._patience = 0.03  # type: ignore[attr-defined]  # a disk stays as it is, however long one waits

    def _case(self, scene: str, order: int) -> Case:
        """Which call fails depends on the system, so a repetition is neither expected nor excluded: `again`."""
        return Case(scene, str(self.faults[(order - 1) // EACH]), "under it", order, again=1)

    def play(self) -> Played:
        gc.collect()
        gc.freeze()
        for number, fault in enumerate(self.faults):
            self._suffer(fault, range(number * EACH + 1, (number + 1) * EACH + 1))
        pass_time(self.place, LEASE + 1)
        if forked(self._recover):
            self.played.unknown.append("the recovery broke off")
        self.played.violations += self._judged()
        return self.played

    def _suffer(self, fault: DiskFault, orders: Sequence[int]) -> None:
        database = self.place.directory / "claims.db"
        ended = fault.around(lambda: self._work(orders), database)
        if ended:
            self.played.violations.append(f"{fault}: the process ended with {ended}")
        refused = self.outside.read("raised")
        felt = any(refused[scene, order] for scene in self.scenes for order in orders)
        self.played.again += felt
        if felt or fault.is_sure(database):
            self.played.kills += 1
            self.played.hits[fault.name] = self.played.hits.get(fault.name, 0) + 1

    def _work(self, orders: Sequence[int]) -> None:
        self._begin()
        for order in orders:
            for scene in self.scenes.values():
                try:
                    told = scene.act(self._case(scene.name, order))
                except TwiceproofError as error:
                    self.outside.note(scene.name, order, "raised", repr(error)[:300])
                else:
                    self.outside.note(scene.name, order, "told", told)
