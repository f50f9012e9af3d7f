"""One round of kills in one store: prepare, kill, kill again in the recovery, recover, judge."""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct, field

from tests.acceptance.children import die
from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.faults.catalogue.killing.deadly import AFTER, Deadly, Orders
from tests.faults.catalogue.killing.outside import Outside
from tests.faults.catalogue.killing.scene import LEASE, Case, Scene, Seen

__all__ = ["Played", "Round", "forked", "forked_off"]


class Played(Struct):
    """The results of a round: plain data, sent by the process that ran it."""

    kills: int = 0
    again: int = 0  # of these, kills in a recovery
    hits: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def forked_off(work: Callable[[], object]) -> int:
    """Run in a process of its own; return its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            gc.disable()  # a collection would touch, and so copy, every page of the parent's
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - a child must never return into its parent's work
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def forked(work: Callable[[], object]) -> int:
    """The same; return its exit code, as `os.waitstatus_to_exitcode` gives it."""
    return os.waitstatus_to_exitcode(os.waitpid(forked_off(work), 0)[1])


class Round:
    """Run in a process of its own without threads: everything that acts is forked from it."""

    def __init__(
        self,
        place: Place,
        scenes: Sequence[type[Scene]],
        cases: Sequence[Case],
        wrap: Any = lambda engine: engine,
        outside: Outside | None = None,
    ) -> None:
        self.place = place
        self.cases = cases
        self.orders = Orders()
        self.outside = outside or Outside(place.directory)
        self.app = place.app(lambda engine: Deadly(wrap(engine), self.orders, self._noted))
        self.scenes = {scene.name: scene(self.app, self.outside, self.orders, place) for scene in scenes}
        self.played = Played()

    def _noted(self, space: str, fence: int) -> None:
        self.outside.note(space, 0, "fence", fence)

    def play(self) -> Played:
        gc.collect()
        gc.freeze()
        if forked(self._prepare):
            self.played.unknown.append(f"could not be prepared: {self._broken()}")
            return self.played
        pass_time(self.place, LEASE + 1)
        for case in self.cases:
            self._kill(case)
        pass_time(self.place, LEASE + 1)
        again = [case for case in self.cases if case.again and self.scenes[case.scene].may_recover_twice]
        for case in again:
            self._kill_again(case)
        if again:
            pass_time(self.place, LEASE + 1)
        if forked(self._recover):
            self.played.unknown.append("the recovery broke off")
        self.played.violations += self._judged()
        return self.played

    # -- in processes of their own ---------------------------------------------------------------

    def _prepare(self) -> None:
        for case in self.cases:
            with self._told_of(case):
                self.scenes[case.scene].prepare(case)

    def _act(self, case: Case) -> None:
        self._begin()
        scene = self._ordered(case)
        told = None
        with self._told_of(case):
            told = scene.act(case)
        if case.position != AFTER or not self.orders.armed:
            self.outside.note(case.scene, case.order, "missed", case.point)
        self.outside.note(case.scene, case.order, "told", told)
        die()

    def _act_again(self, case: Case) -> None:
        self._begin()
        self.orders.nth, self.orders.position = case.again, case.again_at
        self.scenes[case.scene].recover(case)

    def _recover(self) -> None:
        """Twice: the second time nothing changes."""
        self._begin()
        for case in self.cases:
            scene = self.scenes[case.scene]
            with self._told_of(case):
                ended = scene.recover(case)
                before = scene.effects(case.order)
                second = scene.recover(case)
                self.outside.note(case.scene, case.order, "ended", ended)
                if scene.effects(case.order) != before or scene.result(second) != scene.result(ended):
                    self.outside.note(case.scene, case.order, "broken", f"recovered twice: {ended!r}, {second!r}"[:500])

    def _begin(self) -> None:
        self.app.runtime.flusher.stop()  # without background commits a point is always the same one

    def _ordered(self, case: Case) -> Scene:
        scene = self.scenes[case.scene]
        self.orders.point = next(point for point in scene.points if point.name == case.point)
        self.orders.position = case.position
        return scene

    def _told_of(self, case: Case) -> _Told:
        return _Told(self.outside, case)

    # -- killing ---------------------------------------------------------------------------------

    def _kill(self, case: Case) -> None:
        if forked(lambda: self._act(case)) == -signal.SIGKILL:
            self.played.kills += 1
            self.played.hits[case.point] = self.played.hits.get(case.point, 0) + 1

    def _kill_again(self, case: Case) -> None:
        if forked(lambda: self._act_again(case)) == -signal.SIGKILL:  # otherwise there was nothing left to commit
            self.played.kills += 1
            self.played.again += 1

    # -- judging ---------------------------------------------------------------------------------

    def _judged(self) -> Iterator[str]:
        known = {kind: self.outside.read(kind) for kind in ("effect", "told", "ended", "broken", "missed")}
        for case in self.cases:
            at = (case.scene, case.order)
            for what in self._verdict(case, at, known):
                yield f"{case.point}, {case.position}{self._again(case)}, {case.scene} {case.order}: {what}"
        for (space, _), fences in self.outside.read("fence").items():
            if any(later <= earlier for earlier, later in pairwise(fences)):
                yield f"fences of {space} do not grow: {fences}"

    def _verdict(self, case: Case, at: tuple[str, int], known: dict[str, Any]) -> Iterator[str]:
        yield from (f"raised {what}" for what in known["broken"][at])
        yield from (f"the point was not reached: {what}" for what in known["missed"][at])
        if not known["ended"][at]:
            yield "did not come to an end"
            return
        seen = Seen(known["effect"][at], known["told"][at], known["ended"][at][-1])
        yield from self.scenes[case.scene].judge(case, seen)

    def _again(self, case: Case) -> str:
        return (
            f", again at commit {case.again} of the recovery, {case.again_at}" if case.again_at and case.again else ""
        )

    def _broken(self) -> str:
        return "; ".join(
            f"{at[0]} {at[1]}: {what}" for at, whats in self.outside.read("broken").items() for what in whats
        )


class _Told:
    """Record what a scene raises, and continue with the next case."""

    def __init__(self, outside: Outside, case: Case) -> None:
        self._outside = outside
        self._case = case

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            self._outside.note(self._case.scene, self._case.order, "broken", repr(error)[:500])
        return error is not None
