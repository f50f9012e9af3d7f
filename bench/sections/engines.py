"""Whole engines: flows of ours on each store, beside a server that does nothing but run flows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from msgspec import Struct, structs

from twiceproof import App

from ..callers import ONE, TASKS, THREADS
from ..confined import ConfinedEngine
from ..contenders.flows import OurFlows
from ..findings import Findings, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import Series, ratio
from ..sites import Site
from .flows import TYPICAL

__all__ = ["ENGINES", "EngineKind", "measure_engine"]


class EngineKind(Struct, frozen=True):
    """How to have one, and whom it is called by. `patient`: one turn takes so long that one round must do."""

    name: str
    module: str
    packages: tuple[str, ...]
    server: str
    callers: str
    patient: bool = False


RESTATE = EngineKind(
    "Restate", "bench.contenders.restate_flows", ("restate", "hypercorn", "urllib3"), "restate-server", THREADS
)
TEMPORAL = EngineKind("Temporal", "bench.contenders.temporal_flows", ("temporalio",), "temporal", TASKS, patient=True)
ENGINES = (RESTATE, TEMPORAL)


def measure_engine(kind: EngineKind, sites: Sequence[Site], plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    with ExitStack() as stack:
        engine = ConfinedEngine(kind.name, kind.module, (ONE, kind.callers), packages=kind.packages, server=kind.server)
        stack.callback(engine.close)
        apps = [stack.enter_context(App(site.fresh())) for site in sites]
        mine = [OurFlows(app) for app in apps]
        rounds = 1 if kind.patient else plan.flow_rounds
        for callers in (ONE, kind.callers):
            contenders = [_theirs(engine, kind, callers), *_ours(mine, sites, callers)]
            with progress.heat(f"flows beside {kind.name}, {callers}", rounds) as step:
                series = compete(contenders, Slots(rounds, plan.slot), step)
            findings.add(_found(kind, sites, series))
    return findings


def _theirs(engine: ConfinedEngine, kind: EngineKind, callers: str) -> Contender:
    return structs.replace(engine.running(TYPICAL, callers), each=1 if kind.patient else None)


def _ours(mine: Sequence[OurFlows], sites: Sequence[Site], callers: str) -> list[Contender]:
    contenders = [flows.running(TYPICAL, callers) for flows in mine]
    return [Contender(f"{one.name}, {site.name}", one.callers) for one, site in zip(contenders, sites, strict=True)]


def _found(kind: EngineKind, sites: Sequence[Site], series: Sequence[Series]) -> Findings:
    """The one caller is only shown: an engine of its own is made for many."""
    base, *mine = series
    goal = f"flow beside {kind.name}" if base.callers != ONE else f"flow beside {kind.name}, 1 caller"
    who = f"{base.callers}, {TYPICAL} steps:"
    return Findings(
        rows_beside(f"flows beside {kind.name}, {base.callers}", base, list(series)),
        [line(goal, site.name, ratio(one, base), who) for site, one in zip(sites, mine, strict=True)],
    )
