"""One round of processes killed at their n-th system call of a kind, in the middle of a commit."""

from __future__ import annotations

import gc
import signal
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.faults.catalogue.killing.claim_scenes import Charge, Large
from tests.faults.catalogue.killing.round import Played, Round, forked
from tests.faults.catalogue.killing.run_scenes import Errand
from tests.faults.catalogue.killing.scene import LEASE, Case
from tests.faults.catalogue.killing.strace import Traced, counted
from twiceproof.stores.redis import connection as redis_links

__all__ = ["CALLS", "Call", "Syscalls"]

CALLS = {
    "sqlite": ("pwrite64", "fdatasync"),
    "postgres": ("sendto", "recvfrom"),
    "valkey": ("sendto", "recvfrom"),
}


class Call(Struct, frozen=True):
    name: str
    nth: int


class Syscalls(Round):
    """Each process makes two guarded calls, one with a large result, and then a run with three steps."""

    kinds = (Charge, Large, Errand)

    def __init__(self, place: Place, calls: Sequence[Call]) -> None:
        self.calls = calls
        cases = [self._case(scene.name, order) for order in range(1, len(calls) + 1) for scene in self.kinds]
        super().__init__(place, self.kinds, cases)

    def _case(self, scene: str, order: int) -> Case:
        """Where it died depends on the system, so a repetition is neither expected nor excluded: `again`."""
        call = self.calls[order - 1]
        return Case(scene, f"{call.name} {call.nth}", "at it", order, again=1)

    def play(self) -> Played:
        gc.collect()
        gc.freeze()
        for order, call in enumerate(self.calls, 1):
            self._kill_at(call, order)
        pass_time(self.place, LEASE + 1)
        if forked(self._recover):
            self.played.unknown.append("the recovery broke off")
        self.played.violations += self._judged()
        return self.played

    def _kill_at(self, call: Call, order: int) -> None:
        traced = Traced(
            lambda: self._work(order), f"trace={call.name}", f"inject={call.name}:signal=SIGKILL:when={call.nth}"
        )
        ended = traced.end()
        if not traced.attached or ended not in (0, -signal.SIGKILL):
            self.played.unknown.append(f"{call.name} {call.nth}: ended with {ended}: {traced.complaint[:200]}")
        elif ended:
            self.played.kills += 1
            self.played.hits[call.name] = self.played.hits.get(call.name, 0) + 1

    def _work(self, order: int) -> None:
        redis_links.GLANCES = 0  # the number of polls depends on the server, so the n-th would not be the same
        self._begin()
        for scene in self.scenes.values():
            told = scene.act(self._case(scene.name, order))
            self.outside.note(scene.name, order, "told", told)

    def count(self, names: Sequence[str]) -> dict[str, int]:
        """Count the calls of each kind, in a round of its own."""
        made: Any = counted(lambda: self._work(1), ",".join(names), self.place.directory)
        return {name: made[name] for name in names}
