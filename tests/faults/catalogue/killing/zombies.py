"""One round of zombies: processes that are stopped, taken over by others and continued; their writes are refused."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from tests.acceptance.children import Child
from tests.acceptance.later import pass_time
from tests.faults.catalogue.killing.deadly import AFTER, LATE, Point
from tests.faults.catalogue.killing.round import Played, Round
from tests.faults.catalogue.killing.scene import LEASE, Case
from twiceproof import TwiceproofError
from twiceproof.records import Replace

__all__ = ["Zombies"]

TAKEN = Point(
    "taken over",
    lambda write: isinstance(write, Replace) and write.at.kind in ("claim", "run") and write.state == "held",
)
KEYED = " tp_"  # an effect under a key that its receiver knows already does not count twice


class Zombies(Round):
    """All zombies of a round are stopped at once, at the same points at which other rounds kill."""

    writing: Case | None = None

    def play(self) -> Played:
        gc.collect()
        gc.freeze()
        self._run(self._prepare)
        pass_time(self.place, LEASE + 1)
        stopped = {case: self._stopped(case) for case in self.cases}
        pass_time(self.place, LEASE + 1)
        early = {case: stopped.pop(case) for case in self.cases if case.again}
        self._wake_early(early)
        if early:
            pass_time(self.place, LEASE + 1)
        self._run(self._recover)
        self._wake_all(stopped)
        self._run(self._look_again)
        self.played.violations += self._judged()
        return self.played

    def _run(self, work: Any) -> None:
        child = Child(lambda _: work())
        if child.end():
            self.played.unknown.append(f"{work.__name__.strip('_')} broke off: {self._broken()}")

    def _noted(self, space: str, fence: int) -> None:
        if space == LATE and self.writing is not None:
            self.outside.note(self.writing.scene, self.writing.order, "late", fence)
        else:
            super()._noted(space, fence)

    # -- zombies ---------------------------------------------------------------------------------

    def _stopped(self, case: Case) -> Child:
        child = Child(lambda child: self._live(case, child))
        if child.hear() is None:
            self.played.violations.append(f"{case.point}, {case.scene} {case.order}: the point was not reached")
        child.send(signal.SIGSTOP)
        return child

    def _live(self, case: Case, child: Child) -> None:
        self._begin()
        self.writing, self.orders.stop = case, _stopper(child)
        try:
            self.outside.note(case.scene, case.order, "told", self._ordered(case).act(case))
        except TwiceproofError as error:
            self.outside.note(case.scene, case.order, "raised", type(error).__name__)
        except Exception as error:  # noqa: BLE001 - whatever else it is, it is a finding
            self.outside.note(case.scene, case.order, "broken", f"woken up: {error!r}"[:500])

    def _wake_early(self, stopped: dict[Case, Child]) -> None:
        """Wake it while another process is working, which then dies: a third one finds what the two have left."""
        others = [Child(partial(self._take_over, case)) for case in stopped]
        for other in others:
            other.hear()  # nothing, if it has finished
        self._wake_all(stopped)
        for other in others:
            other.send(signal.SIGKILL)
            other.end()

    def _take_over(self, case: Case, child: Child) -> None:
        self._begin()
        self.orders.stop = _stopper(child)
        self.orders.point, self.orders.position = TAKEN, AFTER
        with self._told_of(case):
            self.scenes[case.scene].recover(case)

    def _wake_all(self, stopped: dict[Case, Child]) -> None:
        before = self._effects()
        for case, child in stopped.items():
            self._wake(case, child)
        self.played.violations += self._added(before, stopped)

    def _wake(self, case: Case, child: Child) -> None:
        child.send(signal.SIGCONT)
        child.go()
        child.end()
        self.played.kills += 1
        self.played.hits[case.point] = self.played.hits.get(case.point, 0) + 1

    def _look_again(self) -> None:
        """Check that the records are unchanged, whatever the zombies were answered."""
        self._begin()
        ended = self.outside.read("ended")
        for case in self.cases:
            scene = self.scenes[case.scene]
            with self._told_of(case):
                now, then = scene.recover(case), ended[case.scene, case.order][-1]
                if scene.result(now) != scene.result(then):
                    self.outside.note(case.scene, case.order, "broken", f"clobbered: {then!r} became {now!r}"[:500])

    # -- judging ---------------------------------------------------------------------------------

    def _again(self, case: Case) -> str:
        return ", woken up while another one was at work" if case.again else ""

    def _effects(self) -> dict[tuple[str, int], int]:
        return {at: len(done) for at, done in self.outside.read("effect").items()}

    def _added(self, before: dict[tuple[str, int], int], cases: Iterable[Case]) -> Iterator[str]:
        for case in cases:
            at = (case.scene, case.order)
            done = self.outside.read("effect")[at]
            known = before.get(at, 0)
            more = [what for what in done[known:] if KEYED not in what or what not in done[:known]]
            if more:
                yield f"{case.point}, {case.scene} {case.order}: went on when it woke up: {more}"

    def _judged(self) -> Iterator[str]:
        yield from super()._judged()
        late = self.outside.read("late")
        for case in self.cases:
            accepted = late[case.scene, case.order]
            if accepted != [0]:
                yield f"{case.point}, {case.scene} {case.order}: the zombie's write was accepted: {accepted}"


def _stopper(child: Child) -> Callable[[], None]:
    def stop() -> None:
        child.tell("here")
        child.wait_for_go()

    return stop
