"""Reconciliation: one declaration, the three flows that carry it out, and what a run reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..errors import Misuse, Rejected
from ..flows.engine.context import inside_flow
from ..flows.flow import Flow
from ..flows.runtime import Runtime
from ..flows.step import Step
from ..flows.waits.approvals import approve
from ..flows.waits.records import encode_payload
from ..inbound.hook import Hook
from ..keys.canonical import digest
from ..operations import Operation
from ..stores.base import Store
from .actions import ActionOutcome, ActionPlan
from .checks import Comparison, Discrepancy
from .find import Finder
from .findings import OPEN, RecordedRun, list_findings, read_note
from .sources import SourceReading

__all__ = ["CheckReport", "Reconciliation", "ReconciliationShape", "RunReport", "list_reconciliations"]


class CheckReport(Struct, frozen=True):
    """One check of a run."""

    check: str
    suspects: int
    findings: int
    unsure: int = 0
    skipped: str = ""  # why it was not made


class RunReport(Struct, frozen=True):
    """What one run found. `complete`: all sources were read completely, and each check was made."""

    reconciliation: str
    tick: float
    complete: bool
    sources: list[SourceReading]
    checks: list[CheckReport]
    findings: list[Discrepancy]
    ids: list[str]
    new: int = 0
    reopened: int = 0
    resolved: int = 0
    plans: list[dict[str, Any]] = []
    outcomes: list[ActionOutcome] = []
    dry: bool = False


class Reconciliation:
    """One declared reconciliation: the user's function, its settings, and the flows that carry it out."""

    def __init__(
        self,
        name: str,
        function: Callable[[Finder], Iterable[Comparison]],
        runtime: Runtime,
        flows: MutableMapping[str, Flow],
        hooks: MutableMapping[str, Hook],
        steps: Sequence[Step],
        *,
        grace: float,
        most: int,
        directory: Path | None,
    ) -> None:
        if most < 1:
            raise Misuse(f"most={most!r} is not a number of findings; give 1 or more.")
        self.name = name
        self.function = function
        self.grace = grace
        self.most = most
        self.directory = directory
        self.runtime = runtime
        self.flows = flows
        self.hooks = hooks
        self.steps = steps
        self.every = ""  # as it was declared, for lists

    @property
    def plan_name(self) -> str:
        return f"{self.name}.plan"

    @property
    def action_name(self) -> str:
        return f"{self.name}.action"

    # -- the three flows -------------------------------------------------------------------------

    def run(self, tick: datetime, grace: float | None = None) -> RunReport:
        """The body of the flow: one run per tick."""
        from .run import ReconcileRun

        session = inside_flow("A reconciliation")
        return ReconcileRun(self, session.runtime, tick, self.grace if grace is None else grace).in_flow(session)

    def run_plan(self, plan: ActionPlan) -> list[ActionOutcome]:
        """The body of the flow for a plan over its cap: waits for an approval, then does exactly that plan."""
        session = inside_flow("A plan")
        shown = plan.shown
        asked = approve(
            session, "plan", encode_payload(shown, "show="), digest(shown), None, None, f"reconcile:{self.name}"
        )
        from .run import ReconcileRun

        def run() -> ReconcileRun:
            return ReconcileRun(self, session.runtime, datetime.fromtimestamp(plan.tick, UTC), 0.0)

        try:
            session.do(asked)
        except Rejected as error:
            return run().refuse(session, plan, str(error))
        return run().carry_out(session, plan)

    def run_step(self, finding: str, occurrence: int, step: str, found: dict[str, Any]) -> Any:
        """The body of the flow for a single step given as `then=`."""
        session = inside_flow("An action")
        known = next((one for one in self.steps if one.name == step), None)
        if known is None:
            raise Misuse(f"There is no step {step!r} here any more; declare it again, and retry the run.")
        return session.drive(session.step(known, (found,), {}))

    # -- outside of flows ------------------------------------------------------------------------

    def dry_run(self, tick: datetime, runtime: Runtime) -> RunReport:
        """Read, match and look, without waiting, and write nothing."""
        from .run import ReconcileRun

        run = ReconcileRun(self, runtime, tick, 0.0)
        try:
            run.match()
            return run.report(run.compare(), RecordedRun(), [], dry=True)
        finally:
            run.close()


# -- lists ---------------------------------------------------------------------------------------

MOST = 10_000  # open findings that are counted


class ReconciliationShape(Struct, frozen=True):
    """A reconciliation as it is listed. `rows`: of each source's last whole reading; `open`: findings."""

    name: str
    every: str
    last_run_at: float | None
    last_whole_run_at: float | None
    rows: dict[str, int]
    open: int


def list_reconciliations(
    store: Store, tenant: str, declared: Mapping[str, Reconciliation], *, most: int = MOST
) -> Operation[list[ReconciliationShape]]:
    """Return what is known of each declared reconciliation, by name. Open findings are counted up to `most`."""
    shapes = []
    for name, one in sorted(declared.items()):
        note = yield from read_note(store, tenant, name)
        found = yield from list_findings(store, tenant, name=name, states=(OPEN,), limit=most, most_read=most)
        shapes.append(ReconciliationShape(name, one.every, note.last, note.whole, note.rows, len(found)))
    return shapes
