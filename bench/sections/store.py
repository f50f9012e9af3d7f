"""One store: ours beside the raw way, for one caller, for many, and for duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from twiceproof import App

from ..callers import ONE, TASKS, THREADS
from ..contenders import ours
from ..engine_calls import calls_per_replay
from ..findings import Findings, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import Series, fastest, ratio, spread
from ..sites import RawStore, Site

__all__ = ["measure_store"]


def measure_store(site: Site, plan: Plan, progress: Progress) -> Findings:
    with ExitStack() as stack:
        app = App(site.fresh(), best_effort=True)
        stack.callback(app.close)
        heats = _Heats(site.name, app, site.raw(stack), plan, progress)
        findings = heats.sequential()
        findings.add(heats.concurrent())
        findings.add(heats.replay())
        return findings


class _Heats:
    """Contenders that are compared with each other run in the same heat."""

    def __init__(self, name: str, app: App, raw: RawStore, plan: Plan, progress: Progress) -> None:
        self._name = name
        self._app = app
        self._raw = raw
        self._plan = plan
        self._progress = progress

    def sequential(self) -> Findings:
        base, *mine = self._compete(
            "1 caller",
            [
                self._raw.sequential(),
                ours.taking(self._app, ONE),
                ours.completing(self._app, ONE),
                ours.once(self._app, ONE),
            ],
        )
        take = mine[0]
        return Findings(
            rows_beside(self._part("1 caller"), base, [base, *mine]),
            [line(f"{self._name} sequential", self._name, ratio(take, base))],
        )

    def concurrent(self) -> Findings:
        """The usual way is whichever of the common ones is fastest here, one caller in a loop among them."""
        usual, limits = [self._raw.sequential(), *self._raw.concurrent()], self._raw.limits()
        mine = [
            make(self._app, kind) for make in (ours.taking, ours.completing, ours.once) for kind in (TASKS, THREADS)
        ]
        series = self._compete("64 callers", [*usual, *limits, *mine])
        base, rest = fastest(series[: len(usual)]), series[len(usual) :]
        limit, takes = fastest(rest[: len(limits)]), rest[len(limits) :][:2]
        return Findings(
            rows_beside(self._part("64 callers"), base, series),
            [
                line(
                    f"{self._name} {goal}", self._name, ratio(take, other), take.callers, shown=take.callers == THREADS
                )
                for goal, other in (("usual", base), ("limit", limit))
                for take in takes
            ],
        )

    def replay(self) -> Findings:
        count = self._plan.replayed
        series = self._compete(
            "replay",
            [
                self._raw.reading(count),
                *ours.replaying(self._app, count),
                ours.once_replaying(self._app, count),
            ],
        )
        base, replay = series[:2]
        return Findings(
            rows_beside(self._part("duplicates"), base, series),
            [
                line(f"{self._name} replay", self._name, ratio(replay, base)),
                line("engine calls", self._name, spread([calls_per_replay(self._app)])),
            ],
        )

    def _compete(self, what: str, contenders: Sequence[Contender]) -> list[Series]:
        slots = Slots(self._plan.rounds, self._plan.slot)
        with self._progress.heat(f"{self._name}, {what}", slots.rounds) as step:
            return compete(contenders, slots, step)

    def _part(self, what: str) -> str:
        return f"{self._name}, {what}"
