"""App methods for reconciliation: reconcile, and what people do with findings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..claims.policy import Duration
from ..claims.request import operation_name, refuse_bare
from ..errors import Misuse
from ..flows.flow import Flow
from ..flows.runtime import Runtime
from ..flows.step import Step
from ..flows.triggers.schedule import DueSchedules, Schedule, make_ticks
from ..inbound.hook import Hook
from ..keys import validate_key
from ..keys.duration import seconds
from ..operations import block
from ..records import record_kind
from .triggers import tick_key

if TYPE_CHECKING:
    from ..reconcile.findings import FindingShape
    from ..reconcile.reconciliation import Reconciliation, RunReport

__all__ = ["Reconciliations"]


record_kind("reconciliation")  # of `reconcile`, which is loaded when first needed: a rotation of keys must know it


class Reconciliations:
    """The methods of an app about reconciliation."""

    runtime: Runtime
    flow: Any  # of Declarations
    flows: MutableMapping[str, Flow]
    steps: list[Step]
    hooks: MutableMapping[str, Hook]
    schedules: DueSchedules
    reconciliations: dict[str, Reconciliation]

    def reconcile(
        self,
        every: str | float | timedelta = "1d",
        *,
        at: str = "",
        tz: str = "UTC",
        grace: Duration = "1h",
        most: int = 10_000,
        directory: str | Path | None = None,
        name: str | None = None,
        keep: Duration = "90d",
    ) -> Callable[[Callable[..., Any]], Any]:
        """Compare sources at each tick of a schedule, and record what does not fit: duplicates, missing, different.

        The function is a generator that takes `find`, declares sources with it, and yields checks.

        Args:
            every: How often: an interval ("1d"), or a cron expression.
            at: With every="1d", the time of day ("03:00").
            tz: The time zone of `at` and of a cron expression.
            grace: How long a difference may last before it is looked at again and counts.
            most: How many suspects of one check are looked at; beyond it, they are only counted.
            directory: Where the temporary file is made; by default in the system's directory for such files.
            name: The reconciliation's name; by default the function's own.
            keep: How long its runs are kept.
        """
        refuse_bare(every, "reconcile", "a time", '"1d"')
        ticks = make_ticks(every, tz, at)
        patience = seconds(grace, name="grace", positive=False)

        def declare(function: Callable[..., Any]) -> Any:
            from ..reconcile.findings import LOOKS
            from ..reconcile.reconciliation import Reconciliation

            called = operation_name(function, name, "reconcile")
            if called == LOOKS:
                raise Misuse(f"{LOOKS} is the name of what steps find when they look; give another name=.")
            if not inspect.isgeneratorfunction(function):
                raise Misuse(f"{called} yields no checks; write a `def` with yield find.duplicates(…), and the like.")
            place = None if directory is None else Path(directory)
            declared = Reconciliation(
                called,
                function,
                self.runtime,
                self.flows,
                self.hooks,
                self.steps,
                grace=patience,
                most=most,
                directory=place,
            )
            declared.every = f"{every} at {at}" if at else str(every)
            self.reconciliations[called] = declared
            run = _named(declared.run, called, function)
            wrapper = self.flow(
                key=tick_key, name=called, stable=("key",), ignore=("grace",), limit=1, keep=keep, on_duplicate="wait"
            )(run)
            self.flow(key=_plan_key, name=declared.plan_name, keep=keep, ignore=("plan",))(
                _named(declared.run_plan, "plan", function)
            )
            self.flow(key="{finding}:{occurrence}", name=declared.action_name, keep=keep)(
                _named(declared.run_step, "action", function)
            )
            flow = self.flows[called]
            self.schedules.add(Schedule(flow, ticks, declared.every, tz, "skip", "latest"))
            wrapper.reconciliation = declared
            return wrapper

        return declare

    def reconcile_now(
        self, name: str, *, tick: datetime | None = None, grace: Duration | None = None, dry_run: bool = False
    ) -> RunReport:
        """Run a reconciliation now, in this process, and return its report. Raises `Waiting` while its grace time runs.

        Args:
            name: The reconciliation's name.
            tick: The time for which it runs, by default now. A second call for the same time goes on with the first.
            grace: Instead of the declared grace time.
            dry_run: Read, compare and look again, but wait for nothing, record nothing and do nothing.
        """
        declared = self._reconciliation(name)
        moment = tick or datetime.fromtimestamp(self.runtime.clock.now(), UTC)
        if dry_run:
            return declared.dry_run(moment, self.runtime)
        from ..flows.calls import call

        patience = None if grace is None else seconds(grace, name="grace", positive=False)
        report: RunReport = block(call(self.flows[name].here(), (moment, patience), {}))
        return report

    def findings(self, *, name: str = "", state: str = "", limit: int = 100) -> list[FindingShape]:
        """Return findings, by default all that are not resolved.

        Args:
            name: Only of this reconciliation.
            state: Only in this state, or "all".
            limit: How many at most.
        """
        from ..reconcile.findings import EVERY_STATE, OPEN_STATES, list_findings

        if state not in ("", "all", *EVERY_STATE):
            raise Misuse(f"{state!r} is no state of a finding; say one of {', '.join(EVERY_STATE)}, or all.")
        states = OPEN_STATES if not state else EVERY_STATE if state == "all" else (state,)
        return block(list_findings(self.runtime.store, self.runtime.tenant, name=name, states=states, limit=limit))

    def acknowledge_finding(self, finding: str, *, by: str, note: str = "") -> FindingShape:
        """Say that a finding is seen to: nothing more is done about it by itself.

        Args:
            finding: Its id.
            by: Who says so.
            note: A remark that is kept with it.
        """
        return self._change_finding(finding, "acknowledged", by, note)

    def suppress_finding(self, finding: str, *, by: str, until: Duration | None = None, note: str = "") -> FindingShape:
        """Do not report a finding again, for a time or for ever.

        Args:
            finding: Its id.
            by: Who says so.
            until: For how long from now, such as "30d"; by default for ever.
            note: A remark that is kept with it.
        """
        end = None if until is None else self.runtime.clock.now() + seconds(until, name="until")
        return self._change_finding(finding, "suppressed", by, note, end)

    def resolve_finding(self, finding: str, *, by: str, note: str = "") -> FindingShape:
        """Say that a finding is over. Of a source that was too small, it says that this is its size now.

        Args:
            finding: Its id.
            by: Who says so.
            note: A remark that is kept with it.
        """
        return self._change_finding(finding, "resolved", by, note)

    def _change_finding(self, finding: str, state: str, by: str, note: str, until: float | None = None) -> FindingShape:
        from ..reconcile.findings import change_finding

        store, tenant = self.runtime.store, self.runtime.tenant
        return block(change_finding(store, tenant, finding, state, by=validate_key(by), note=note[:2_000], until=until))

    def _reconciliation(self, name: str) -> Reconciliation:
        found = self.reconciliations.get(name)
        if found is None:
            known = ", ".join(sorted(self.reconciliations)) or "none"
            raise Misuse(f"No reconciliation is called {name}; those that are declared: {known}.")
        return found


def _plan_key(plan: Any) -> str:
    return str(plan["hash"] if isinstance(plan, dict) else plan.hash)


def _named(method: Callable[..., Any], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method as a function that is written where the user's is: a name may be used once."""

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    wrapper.__module__, wrapper.__qualname__ = function.__module__, f"{function.__qualname__}.{name}"
    return wrapper
