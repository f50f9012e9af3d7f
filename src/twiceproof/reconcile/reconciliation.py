"""Reconciliation: one declaration, and the three flows that it consists of; what a run reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
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
from .actions import ActionOutcome, ActionPlan
from .checks import Comparison, Discrepancy
from .find import Finder
from .findings import RecordedRun
from .sources import SourceReading

__all__ = ["CheckReport", "Reconciliation", "RunReport"]


class CheckReport(Struct, frozen=True):
    """One check of a run."""

    check: str
    suspects: int
    findings: int
    unsure: int = 0
    skipped: str = ""  # why it was not made


class RunReport(Struct, frozen=True):
    """What one run found. `complete`: all sources were read whole, and each check was made."""

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
    """One declared reconciliation: the user's function, its settings, and the flows that it consists of."""

    def __init__(
        self,
        name: str,
        function: Callable[[Finder], Iterable[Comparison]],
        parts: Runtime,
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
        self.parts = parts
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
        return ReconcileRun(self, session.parts, tick, self.grace if grace is None else grace).in_flow(session)

    def run_plan(self, plan: ActionPlan) -> list[ActionOutcome]:
        """The body of the flow of a plan over its cap: it waits for an approval, and does exactly that plan."""
        session = inside_flow("A plan")
        shown = plan.shown
        asked = approve(
            session, "plan", encode_payload(shown, "show="), digest(shown), None, None, f"reconcile:{self.name}"
        )
        try:
            session.do(asked)
        except Rejected as error:
            return [ActionOutcome(item.id, "refused", str(error)) for item in plan.items]
        from .run import ReconcileRun

        run = ReconcileRun(self, session.parts, datetime.fromtimestamp(plan.tick, UTC), 0.0)
        return run.carry_out(session, plan)

    def run_step(self, finding: str, occurrence: int, step: str, found: dict[str, Any]) -> Any:
        """The body of the flow of one step that was given as `then=`."""
        session = inside_flow("An action")
        known = next((one for one in self.steps if one.name == step), None)
        if known is None:
            raise Misuse(f"There is no step {step!r} here any more; declare it again, and retry the run.")
        return session.drive(session.step(known, (found,), {}))

    # -- outside of flows ------------------------------------------------------------------------

    def dry_run(self, tick: datetime, parts: Runtime) -> RunReport:
        """Read, match and look, without waiting, and write nothing."""
        from .run import ReconcileRun

        run = ReconcileRun(self, parts, tick, 0.0)
        try:
            run.match()
            return run.report(run.compare(), RecordedRun(), [], dry=True)
        finally:
            run.close()
