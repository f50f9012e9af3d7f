"""Actions: what is done about findings, within a cap, by a plan that is made before the first action.

Each action is repeated safely: a run is started under its own key, a duplicate is undone once for each receipt, and a
step runs in a run of its own, under the finding's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from ..errors import ClaimLost, Misuse, NeedsReview, PayloadMismatch, StoreError, TwiceproofError, Waiting
from ..flows.flow import Flow
from ..flows.parallel.compensate_duplicate import DuplicateEffect
from ..flows.parallel.compensate_duplicate import compensate as undo_duplicate
from ..flows.runtime import Runtime
from ..flows.step import Step
from ..keys import digest
from ..operations import Operation, await_, block
from .checks import Discrepancy
from .ledger_rows import recorded_step
from .sources import SourceRow

if TYPE_CHECKING:
    from .checks import Comparison

__all__ = [
    "DEFAULT_CAP",
    "Action",
    "ActionOutcome",
    "ActionPlan",
    "Cap",
    "PlanItem",
    "Surroundings",
    "as_action",
    "attempt",
    "compensate",
    "make_plan",
    "notify",
    "start",
]

SHOWN = 20  # lines of a plan that an approval shows


class Cap(Struct, frozen=True):
    """How much may be done without an approval: a number of actions, and a percentage of the source's rows."""

    count: int | None = 20
    percent: float | None = 5.0

    def __post_init__(self) -> None:
        for name in ("count", "percent"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
                raise Misuse(f"Cap({name}={value!r}) is no limit; give a number, or None for no limit.")

    def refuses(self, actions: int, rows: int) -> str:
        """Return why a whole plan is over the cap; "" if it is not."""
        planned = f"{actions} action{'' if actions == 1 else 's'}"
        if self.count is not None and actions > self.count:
            return f"{planned}, more than {self.count}"
        if self.percent is not None and actions > rows * self.percent / 100:
            return f"{planned} for {rows} rows, more than {self.percent:g} %"
        return ""


DEFAULT_CAP = Cap()


class Surroundings(Struct, frozen=True):
    """What actions need from the app: the flows by name, and the flow in which single steps run."""

    runtime: Runtime
    name: str
    flows: Mapping[str, Flow]
    step_flow: Flow


class PlanItem(Struct, frozen=True):
    """One action: about which finding, and for a duplicate, which of its rows."""

    finding: str
    occurrence: int
    key: str
    do: str
    ref: str = ""

    @property
    def id(self) -> str:
        return f"{self.finding}:{self.occurrence}:{self.ref}" if self.ref else f"{self.finding}:{self.occurrence}"

    @property
    def line(self) -> str:
        return f"{self.do} {self.ref} of {self.key}" if self.ref else f"{self.do} for {self.key}"


class ActionPlan(Struct, frozen=True):
    """All actions about one check's findings. `over` is why it needs an approval; "" if it does not."""

    reconciliation: str
    check: str
    tick: float
    items: tuple[PlanItem, ...]
    over: str = ""

    @property
    def hash(self) -> str:
        """Equal for equal actions, independent of when they were planned."""
        return digest([self.reconciliation, self.check, [[item.id, item.do] for item in self.items]]).partition(":")[2][
            :32
        ]

    @property
    def shown(self) -> dict[str, Any]:
        """What an approval shows."""
        lines = [item.line for item in self.items[:SHOWN]]
        return {"plan": self.hash, "check": self.check, "actions": len(self.items), "over": self.over, "lines": lines}


class ActionOutcome(Struct, frozen=True):
    """The outcome of one action."""

    item: str
    state: Literal["acted", "gone", "refused", "unknown", "failed"]
    text: str = ""


Fresh = Sequence[SourceRow]  # the rows of the check's first source


class Action(Struct, frozen=True):
    """Something to do about a finding. This one does nothing: new findings are notified of anyway."""

    cap: Cap = DEFAULT_CAP

    def items(self, around: Surroundings, finding: str, occurrence: int, key: str, rows: Fresh) -> list[PlanItem] | str:
        """Return what to do, or why a person must decide."""
        return []

    def perform(self, around: Surroundings, item: PlanItem, found: Discrepancy, rows: Fresh) -> ActionOutcome:
        raise NotImplementedError


notify = Action()


class StartFlow(Action, frozen=True, kw_only=True):
    """Start a run for a row without one. An existing run is left alone in any state."""

    flow: Flow
    argument: Callable[[Mapping[str, Any]], Any] = dict

    def items(self, around: Surroundings, finding: str, occurrence: int, key: str, rows: Fresh) -> list[PlanItem] | str:
        return [PlanItem(finding, occurrence, key, f"start {self.flow.name}")]

    def perform(self, around: Surroundings, item: PlanItem, found: Discrepancy, rows: Fresh) -> ActionOutcome:
        if len(rows) != 1:
            return ActionOutcome(item.id, "refused", f"{len(rows)} rows have this key; one is needed to start a run")
        args = (self.argument(rows[0].row),)
        own = self.flow.key(args, {})
        if own != item.key:
            return ActionOutcome(item.id, "refused", f"its run would have the key {own!r}, not {item.key!r}")
        handle, first = block(self.flow.here().begin(args, {}))
        if first:
            return ActionOutcome(item.id, "acted", f"started {self.flow.name}")
        record = around.runtime.store.read(handle.at).block().record
        return ActionOutcome(item.id, "refused", f"a run of {self.flow.name} is {record.state if record else 'known'}")


class CompensateDuplicates(Action, frozen=True, kw_only=True):
    """Undo all rows of a key but the one that the ledger recorded."""

    step: Step
    receipt: Callable[[Mapping[str, Any], str], Mapping[str, Any]]
    arguments: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    flow: str = ""

    def _surplus(self, around: Surroundings, key: str, rows: Fresh) -> tuple[dict[str, SourceRow], str] | str:
        """Return the rows to undo, by their ids, and the run's space; or why these are not known."""
        flows = [self.flow] if self.flow else sorted(around.flows)
        recorded = recorded_step(around.runtime.store, around.runtime.tenant, flows, key, self.step)
        if len(recorded) != 1:
            return f"{self.step.name} is recorded {len(recorded)} times for this key"
        good = [row.ref for row in rows if recorded[0].is_of(self.step, self.receipt(row.row, row.ref))]
        if len(good) != 1:
            return f"{len(good)} of them are what the ledger recorded"
        return {row.ref: row for row in rows if row.ref != good[0]}, recorded[0].space

    def items(self, around: Surroundings, finding: str, occurrence: int, key: str, rows: Fresh) -> list[PlanItem] | str:
        surplus = self._surplus(around, key, rows)
        if isinstance(surplus, str):
            return f"a person must say which one is right: {surplus}"
        return [PlanItem(finding, occurrence, key, f"undo {self.step.name}", ref) for ref in sorted(surplus[0])]

    def perform(self, around: Surroundings, item: PlanItem, found: Discrepancy, rows: Fresh) -> ActionOutcome:
        surplus = self._surplus(around, item.key, rows)
        if isinstance(surplus, str):
            return ActionOutcome(item.id, "refused", surplus)
        row = surplus[0].get(item.ref)
        if row is None:
            return ActionOutcome(item.id, "gone", f"{item.ref} is not there any more, or is the recorded one")
        duplicate = DuplicateEffect(
            self.step, self.receipt(row.row, row.ref), self.arguments(row.row), f"reconcile:{around.name}"
        )
        return self._undone(around, item, duplicate, surplus[1])

    def _undone(self, around: Surroundings, item: PlanItem, duplicate: DuplicateEffect, space: str) -> ActionOutcome:
        try:
            if self.step.undo is not None and self.step.undo.is_async:
                asyncio.run(_awaited(undo_duplicate(around.runtime, _known(space), duplicate, await_)))
            else:
                block(undo_duplicate(around.runtime, _known(space), duplicate, block))
        except NeedsReview as error:
            return ActionOutcome(item.id, "unknown", str(error))
        except Waiting as error:
            return ActionOutcome(item.id, "failed", str(error))
        return ActionOutcome(item.id, "acted", f"undid {item.ref}")


async def _awaited(operation: Operation[Any]) -> Any:
    return await await_(operation)


def _known(space: str) -> Operation[str]:
    yield from ()
    return space


class RunStep(Action, frozen=True, kw_only=True):
    """Run a step with the finding as its argument, in a run of its own."""

    step: Step

    def items(self, around: Surroundings, finding: str, occurrence: int, key: str, rows: Fresh) -> list[PlanItem] | str:
        return [PlanItem(finding, occurrence, key, f"run {self.step.name}")]

    def perform(self, around: Surroundings, item: PlanItem, found: Discrepancy, rows: Fresh) -> ActionOutcome:
        given = {
            "id": item.finding,
            "check": found.check,
            "key": found.key,
            "refs": list(found.refs),
            "summary": found.summary,
            "records": found.records,
        }
        args = (item.finding, item.occurrence, self.step.name, given)
        _, first = block(around.step_flow.here().begin(args, {}))
        return ActionOutcome(item.id, "acted", f"{'started' if first else 'has started'} {self.step.name}")


# -- as users write them -------------------------------------------------------------------------


def start(flow: Any, *, argument: Callable[[Mapping[str, Any]], Any] = dict, cap: Cap = DEFAULT_CAP) -> Action:
    """Start a run for each finding, from its row: `then=start(sync_order)`.

    Args:
        flow: The function under @app.flow. Its key must be the finding's.
        argument: Makes the flow's argument from the row; by default the row itself.
        cap: How many may be started without an approval.
    """
    known = getattr(flow, "flow", None)
    if not isinstance(known, Flow):
        raise Misuse("start(…) needs a function under @app.flow.")
    return StartFlow(cap, flow=known, argument=argument)


def compensate(
    step: Any,
    *,
    flow: Any = None,
    keep: Literal["recorded"] = "recorded",
    receipt: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    arguments: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda row: {},
    cap: Cap = DEFAULT_CAP,
) -> Action:
    """Undo all rows of a key but the one that the ledger recorded: `then=compensate(create_invoice)`.

    Args:
        step: The function under @app.step or @app.effect whose effect was duplicated; it has an undo.
        flow: The function under @app.flow that calls it; by default any flow with a run of that key.
        keep: Which row stays. Only "recorded" is safe: the oldest need not be the one that the ledger knows.
        receipt: Makes from a row what the step would have returned for it; by default `{"id": …}`, with the row's id.
            It must not change from day to day: each receipt is undone once.
        arguments: Makes from a row the further arguments of the undo.
        cap: How many may be undone without an approval.
    """
    declared = getattr(step, "step", None)
    if not isinstance(declared, Step) or declared.undo is None:
        raise Misuse("compensate(…) needs a function under @app.step(undo=…) or @app.effect(undo=…).")
    if keep != "recorded":
        raise Misuse(f'keep={keep!r} could undo what the ledger relies on; use keep="recorded".')
    name = getattr(getattr(flow, "flow", None), "name", "")
    made = (lambda row, ref: {"id": ref}) if receipt is None else (lambda row, ref: receipt(row))
    return CompensateDuplicates(cap, step=declared, receipt=made, arguments=arguments, flow=name)


def as_action(then: Any) -> Action:
    if then is None:
        return notify
    if isinstance(then, Action):
        return then
    declared = getattr(then, "step", None)
    if isinstance(declared, Step):
        return RunStep(step=declared)
    raise Misuse(f"then={then!r:.60} is no action; give notify, start(flow), compensate(step), or a step.")


# -- plans ---------------------------------------------------------------------------------------


def make_plan(
    around: Surroundings,
    check: Comparison,
    tick: float,
    found: Sequence[tuple[str, int, Discrepancy]],
    rows_of: Callable[[str], Fresh],
    rows: int,
) -> tuple[ActionPlan, dict[str, str]]:
    """Return all actions about these findings, counted before the first is done, and why other findings are left to a
    person.
    """
    action = as_action(check.then)
    items: list[PlanItem] = []
    left: dict[str, str] = {}
    for finding, occurrence, discrepancy in found:
        planned = action.items(around, finding, occurrence, discrepancy.key, rows_of(discrepancy.key))
        if isinstance(planned, str):
            left[finding] = planned
        else:
            items += planned
    over = action.cap.refuses(len(items), rows) if items else ""
    return ActionPlan(around.name, check.label, tick, tuple(items), over), left


def attempt(action: Action, around: Surroundings, item: PlanItem, found: Discrepancy, rows: Fresh) -> ActionOutcome:
    """Carry out one action. A failure becomes its outcome, and the others continue."""
    try:
        return action.perform(around, item, found, rows)
    except PayloadMismatch as error:
        return ActionOutcome(item.id, "refused", str(error))
    except (StoreError, ClaimLost):  # this run itself cannot continue
        raise
    except TwiceproofError as error:
        return ActionOutcome(item.id, "failed", str(error))
    except Exception as error:  # noqa: BLE001 - an undo of the user's; it is recorded with its run
        return ActionOutcome(item.id, "failed", f"{type(error).__name__}: {error}"[:300])
