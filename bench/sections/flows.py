"""Flows: n trivial steps, beside n+1 raw commits and beside DBOS on the same kind of database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from twiceproof import App

from ..callers import ONE, TASKS, THREADS, Several
from ..contenders.flows import OurFlows
from ..findings import Findings, Line, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import Series, ratio
from ..sites import RawStore, Site

__all__ = ["TYPICAL", "measure_flows", "measure_flows_beside"]

TYPICAL = 5  # steps of the flow that the goals speak of


class Peer(Protocol):
    """Something else that runs flows, on a database of its own beside ours."""

    def running(self, steps: int, callers: str) -> Contender: ...

    def replaying(self, steps: int, finished: int) -> Contender: ...


def measure_flows(site: Site, plan: Plan, progress: Progress) -> Findings:
    from ..contenders.dbos_flows import DbosFlows

    with ExitStack() as stack:
        app = App(site.fresh())
        stack.callback(app.close)
        dbos = DbosFlows(site.fresh(), stack)
        heats = _Heats(site, OurFlows(app), dbos, site.raw(stack), plan, progress)
        findings = Findings()
        for steps in plan.steps:
            findings.add(heats.sequential(steps))
        for steps in plan.steps:
            findings.add(heats.concurrent(steps))
        findings.add(heats.replay())
        return findings


def measure_flows_beside(mine: Site, other: Site, plan: Plan, progress: Progress) -> Findings:
    """The typical flow by 64 tasks, on one ledger beside another."""
    with ExitStack() as stack:
        apps = [App(site.fresh()) for site in (other, mine)]
        for app in apps:
            stack.callback(app.close)
        contenders = [OurFlows(app).running(TYPICAL, TASKS) for app in apps]
        slots = Slots(plan.rounds, plan.slot)
        with progress.heat(f"{mine.name}, flows beside {other.name}", slots.rounds) as step:
            base, ours = compete(contenders, slots, step)
    part = f"{mine.name}, flows of {TYPICAL} steps beside {other.name}"
    return Findings(rows_beside(part, base, [base, ours]), [line("flow on MariaDB", mine.name, ratio(ours, base))])


class _Heats:
    """Contenders that are compared with each other run in the same heat."""

    def __init__(self, site: Site, ours: OurFlows, dbos: Peer, raw: RawStore, plan: Plan, progress: Progress) -> None:
        self._name = site.name
        self._ours = ours
        self._dbos = dbos
        self._raw = raw
        self._plan = plan
        self._progress = progress

    def sequential(self, steps: int) -> Findings:
        contenders = [
            self._dbos.running(steps, ONE),
            _commits(self._raw, steps + 1),
            self._ours.running(steps, ONE),
        ]
        series = self._compete(f"1 caller, {steps} steps", contenders, self._plan.rounds)
        base, raw, mine = series
        return Findings(
            rows_beside(f"{self._name}, flows of {steps} steps, 1 caller", base, series),
            [
                self._line(f"{self._name} flow", mine, base, f"1 caller, {steps} steps:"),
                self._line("flow commits", mine, raw, f"1 caller, {steps} steps:"),
            ],
        )

    def concurrent(self, steps: int) -> Findings:
        """The slower sort of peer decides how long this takes: only the typical flow gets several rounds."""
        contenders = [
            *(self._dbos.running(steps, kind) for kind in (TASKS, THREADS)),
            *(self._ours.running(steps, kind) for kind in (TASKS, THREADS)),
        ]
        rounds = self._plan.flow_rounds if steps == TYPICAL else 1
        series = self._compete(f"64 callers, {steps} steps", contenders, rounds)
        findings = Findings(rows_beside(f"{self._name}, flows of {steps} steps, 64 callers", series[0], series))
        if steps == TYPICAL:
            findings.lines += self._concurrent_lines(series)
        return findings

    def _concurrent_lines(self, series: list[Series]) -> list[Line]:
        """Each kind of caller beside the same kind of the peer's."""
        return [
            self._line(f"flow, {mine.callers}", mine, peer, f"{mine.callers}, {TYPICAL} steps:")
            for peer, mine in zip(series[:2], series[2:], strict=True)
        ]

    def replay(self) -> Findings:
        finished = self._plan.replayed_flows
        contenders = [self._dbos.replaying(TYPICAL, finished), self._ours.replaying(TYPICAL, finished)]
        series = self._compete("finished flows", contenders, self._plan.rounds)
        base, mine = series
        return Findings(
            rows_beside(f"{self._name}, finished flows of {TYPICAL} steps", base, series),
            [self._line("flow replay", mine, base)],
        )

    def _line(self, goal: str, mine: Series, other: Series, who: str = "") -> Line:
        return line(goal, self._name, ratio(mine, other), who)

    def _compete(self, what: str, contenders: Sequence[Contender], rounds: int) -> list[Series]:
        with self._progress.heat(f"{self._name}, flows, {what}", rounds) as step:
            return compete(contenders, Slots(rounds, self._plan.slot), step)


def _commits(raw: RawStore, count: int) -> Contender:
    """As many one-row commits as a flow needs, by the driver alone."""
    return Contender(f"{count} raw commits", Several(raw.sequential().callers, count))
