"""The run of a reconciliation: a flow with the steps read, match, look and act.

    read    each source once, into the temporary file
    match   suspects, by the sorted keys of all sources
    (wait)  until the newest suspect is older than the grace time
    look    each suspect again; what is still so becomes a finding
    act     on findings, each action its own step

The temporary file belongs to this process. If another process continues the run after `read`, it reads again; suspects,
findings and actions are in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, structs

from ..claims.claim import HELD, QUEUED, WAITING
from ..effects.base import Unknown
from ..effects.repeat import DEFAULT_RETRY, SAFE
from ..flows.engine.decisions import StepPlan
from ..flows.engine.session import Session
from ..flows.runtime import Runtime
from ..flows.step import Step
from ..flows.waits.waiting import sleep
from ..operations import block
from ..safe_text import suggested_command
from ..stores.encryption import EncryptedEngine
from .actions import ActionOutcome, ActionPlan, PlanItem, Surroundings, as_action, attempt, make_plan, notify
from .checks import INCOMPLETE, TOO_MANY, UNUSABLE, Comparison, Discrepancy, condition_of, finding_id
from .find import Finder, checked
from .findings import OPEN, RecordedRun, lower_rows, mark_acted, read_note, record_run
from .looking import SecondLook, Wanted
from .matching import Workspace
from .readers import Reading
from .reconciliation import CheckReport, Reconciliation, RunReport
from .sources import KeyedSource, SourceOrigin, SourceReading, read_source

__all__ = ["ReconcileRun"]


class SuspectKey(Struct, frozen=True):
    """A key that fails a check by the first reading."""

    check: str
    key: str


class Matched(Struct, frozen=True):
    """What matching found. `wait` is how long until each suspect is older than the grace time."""

    sources: list[SourceReading]
    suspects: list[SuspectKey]
    skipped: dict[str, str]  # checks that were not made, and why
    counts: dict[str, int]  # suspects of checks with too many of them
    wait: float = 0.0


class Compared(Struct, frozen=True):
    """What the second look confirmed, and what it could not judge."""

    found: list[Discrepancy]
    unsure: list[tuple[str, str]] = []


class LookedAt(Struct, frozen=True):
    """What was recorded, and the plans of actions."""

    compared: Compared
    recorded: RecordedRun
    plans: list[ActionPlan]
    left: dict[str, str] = {}


class ReconcileRun:
    """One run in this process. Each method is the body of a step, and may be called again after a crash."""

    def __init__(self, declared: Reconciliation, runtime: Runtime, tick: datetime, grace: float) -> None:
        self.declared = declared
        self.tick = tick
        self.grace = grace
        self.find = Finder(tick, runtime, declared.flows, declared.hooks, declared.steps)
        self.checks = checked(declared.function(self.find))
        for check in self.checks:
            as_action(check.then)
        self._runtime = runtime
        self._reading = Reading(runtime.clock, roll=runtime.roll)
        self._workspace: Workspace | None = None
        self._read: list[SourceReading] = []
        self._matched: Matched | None = None
        self._before = block(read_note(runtime.store, runtime.tenant, declared.name))

    @property
    def around(self) -> Surroundings:
        declared = self.declared
        return Surroundings(self._runtime, declared.name, declared.flows, declared.flows[declared.action_name])

    def close(self) -> None:
        if self._workspace is not None:
            self._workspace.close()
            self._workspace = None

    # -- in a flow -------------------------------------------------------------------------------

    def in_flow(self, session: Session) -> RunReport:
        try:
            _step(session, self.read)
            self._matched = _step(session, self.match)
        finally:
            self.close()
        if self._matched.wait > 0:
            session.do(sleep(session, self._matched.wait))
        looked = _step(session, self.look)
        outcomes: list[ActionOutcome] = []
        for plan in looked.plans:
            if plan.over:
                _step(session, self._parking(plan), plan.hash)
            else:
                outcomes += self.carry_out(session, plan)
        plans = [plan.shown for plan in looked.plans]
        return self.report(looked.compared, looked.recorded, plans, outcomes)

    def carry_out(self, session: Session, plan: ActionPlan) -> list[ActionOutcome]:
        """Do each item of a plan in a step of its own. Each is looked at once more first."""
        check = next((one for one in self.checks if one.label == plan.check), None)
        if check is None:
            return [
                ActionOutcome(item.id, "refused", f"there is no check {plan.check} any more") for item in plan.items
            ]
        items = {item.id: item for item in plan.items}
        looks: list[SecondLook] = []

        def act(item: str) -> ActionOutcome:
            if not looks:
                looks.append(self._look([(check, one.key) for one in plan.items]))
            return self.act(check, items[item], looks[0])

        return [_step(session, act, item.id) for item in plan.items]

    # -- read and match --------------------------------------------------------------------------

    def read(self) -> list[SourceReading]:
        """Read all sources into the temporary file."""
        self.close()
        engine = getattr(self._runtime.store, "engine", None)
        workspace = Workspace(self.declared.directory, sealed=isinstance(engine, EncryptedEngine))
        self._workspace = workspace
        self._read = [
            read_source(origin, views, self._reading, self._before.rows.get(origin.name), workspace.keep)
            for origin, views in self._origins()
        ]
        workspace.sort()
        self._read = [self._without_repeats(told, workspace) for told in self._read]
        return self._read

    def _origins(self) -> list[tuple[SourceOrigin, list[KeyedSource]]]:
        """Return the sources that checks use; others are not read."""
        used = {source.number: source for check in self.checks for source in check.sources}
        grouped: dict[int, tuple[SourceOrigin, list[KeyedSource]]] = {}
        for number in sorted(used):
            origin = used[number].origin
            grouped.setdefault(id(origin), (origin, []))[1].append(used[number])
        return list(grouped.values())

    def _without_repeats(self, told: SourceReading, workspace: Workspace) -> SourceReading:
        """Refuse a reading with repeated rows: pages were repeated, and so others may have been skipped."""
        views = next(views for origin, views in self._origins() if origin.name == told.source)
        if not told.whole or views[0].origin.reader.unstable:
            return told
        repeated = max(workspace.repeated(view) for view in views)
        return structs.replace(told, whole=False, why=f"{repeated:,} rows came twice") if repeated else told

    def match(self) -> Matched:
        """Find suspects. Reads first, if another process has read."""
        if self._workspace is None:
            self.read()
        assert self._workspace is not None  # noqa: S101 - read above
        whole = {told.source: told.whole for told in self._read}
        skipped: dict[str, str] = {}
        counts: dict[str, int] = {}
        digests: list[tuple[Comparison, bytes]] = []
        for check in self.checks:
            broken = [source.origin.name for source in check.sources if not whole[source.origin.name]]
            if broken and check.needs_absence:
                skipped[check.label] = f"{', '.join(broken)} was not read whole"
            elif check.direct is None:
                digests += [(check, one) for one in self._suspects(check, self._workspace, counts)]
        suspects, wait = self._named(digests, self._workspace)
        self._matched = Matched(self._read, suspects, skipped, counts, wait)
        return self._matched

    def _suspects(self, check: Comparison, workspace: Workspace, counts: dict[str, int]) -> list[bytes]:
        asked = condition_of(check, sealed=workspace.sealed)
        most = self.declared.most
        found = workspace.suspects(asked.having, asked.sources, asked.values, most + 1)
        if len(found) > most:
            counts[check.label] = workspace.count(asked.having, asked.sources, asked.values)
        return found[:most]

    def _named(self, digests: list[tuple[Comparison, bytes]], workspace: Workspace) -> tuple[list[SuspectKey], float]:
        """Return suspects by their keys, and how long to wait for the newest of them."""
        names = self._keys_of({one for _, one in digests}, workspace) if workspace.sealed else {}
        now, wait, suspects = self._runtime.clock.now(), 0.0, []
        for check, one in digests:
            numbers = {source.number for source in check.sources}
            rows = [row for row in workspace.rows_of(one) if row.source in numbers]
            key = names.get(one) or next((row.key for row in rows if row.key is not None), None)
            if key is None:
                continue  # it disappeared while the source was read again
            suspects.append(SuspectKey(check.label, key))
            youngest = max((now if row.at is None else row.at for row in rows), default=now)
            wait = max(wait, min(youngest + self.grace - now, self.grace))
        return suspects, wait

    def _keys_of(self, digests: set[bytes], workspace: Workspace) -> dict[bytes, str]:
        """Read the sources again for the keys of digests: for an encrypted ledger the file holds no keys."""
        names: dict[bytes, str] = {}
        for origin, views in self._origins() if digests else ():
            read_source(
                origin,
                views,
                self._reading,
                None,
                lambda _, row: names.update({one: row.key} if (one := workspace.digest(row.key)) in digests else {}),
            )
        return names

    # -- look and record -------------------------------------------------------------------------

    def look(self) -> LookedAt:
        """Look again at each suspect, record those that are confirmed, and plan actions."""
        matched = self._told
        compared = self.compare()
        found = compared.found + self._about_sources(matched)
        whole = all(told.whole for told in matched.sources)
        rows = {told.source: told.rows for told in matched.sources if told.whole}
        tick = self.tick.timestamp()
        note = structs.replace(
            self._before, last=tick, whole=tick if whole else self._before.whole, rows={**self._before.rows, **rows}
        )
        runtime = self._runtime
        settled = self._settled(matched)
        untold = {(UNUSABLE, told.source) for told in matched.sources if not told.whole}
        untold |= {(TOO_MANY, check.label) for check in self.checks if check.label not in settled}
        unsure = untold.union(compared.unsure)
        recorded = block(record_run(runtime.store, runtime.tenant, note, found, settled, unsure))
        plans, left = self._plans(compared, recorded, matched)
        for finding, why in left.items():
            block(mark_acted(runtime.store, runtime.tenant, self.declared.name, finding, why, acted=False))
        return LookedAt(compared, recorded, plans, left)

    @property
    def _told(self) -> Matched:
        assert self._matched is not None  # noqa: S101 - set by `match`, or by its recorded result
        return self._matched

    def compare(self) -> Compared:
        """Return the suspects that a second look confirms."""
        matched = self._told
        checks = {check.label: check for check in self.checks}
        wanted = [(checks[one.check], one.key) for one in matched.suspects if one.check in checks]
        self._looked = look = self._look(wanted)
        found: list[Discrepancy] = []
        unsure: list[tuple[str, str]] = []
        for check, key in wanted:
            judged = look.judge(check, key)
            if isinstance(judged, Unknown):
                unsure.append((check.label, key))
            elif judged is not None:
                found.append(judged)
        for check in self.checks:
            if check.direct is not None:
                found += check.direct()
        return Compared(found, unsure)

    def _look(self, wanted: Sequence[Wanted]) -> SecondLook:
        runtime = self._runtime
        look = SecondLook(runtime.store, runtime.tenant, self.declared.name, self._reading, self._before.rows)
        look.ask(wanted)
        return look

    def _about_sources(self, matched: Matched) -> list[Discrepancy]:
        """Findings about sources and checks: one for each, whatever the number of rows."""
        found = []
        for told in matched.sources:
            if not told.whole:
                found.append(Discrepancy(INCOMPLETE, told.source, (), told.why))
            if told.unusable:
                summary = f"{told.unusable:,} rows have no key that can be used"
                found.append(Discrepancy(UNUSABLE, told.source, (), summary, {told.source: _examples(told)}))
        for label, count in matched.counts.items():
            found.append(
                Discrepancy(TOO_MANY, label, (), f"{count:,} suspects, of which {self.declared.most:,} are listed")
            )
        return found

    def _settled(self, matched: Matched) -> list[str]:
        """Return the checks whose other findings are resolved: those that saw all rows."""
        whole = {told.source for told in matched.sources if told.whole}
        made = [
            check.label
            for check in self.checks
            if check.label not in matched.counts and all(source.origin.name in whole for source in check.sources)
        ]
        return [*made, INCOMPLETE, UNUSABLE, TOO_MANY]

    # -- act -------------------------------------------------------------------------------------

    def _plans(
        self, compared: Compared, recorded: RecordedRun, matched: Matched
    ) -> tuple[list[ActionPlan], dict[str, str]]:
        """Return one plan for each check that acts, without findings that a person has handled or that were acted
        upon.
        """
        rows = {told.source: told.rows for told in matched.sources if told.whole}
        plans: list[ActionPlan] = []
        left: dict[str, str] = {}
        for check in self.checks:
            action = as_action(check.then)
            sources = {source.origin.name for source in check.sources}
            if action is notify or check.label in matched.counts or not sources <= rows.keys():
                continue
            due = self._due(check, compared, recorded)
            first = check.sources[0] if check.sources else None
            plan, unclear = make_plan(
                self.around,
                check,
                self.tick.timestamp(),
                due,
                lambda key, first=first: self._looked.rows(first, key) if first is not None else [],  # type: ignore[misc]
                rows[first.origin.name] if first is not None else 0,
            )
            left |= unclear
            if plan.items:
                plans.append(plan)
        return plans, left

    def _due(self, check: Comparison, compared: Compared, recorded: RecordedRun) -> list[tuple[str, int, Discrepancy]]:
        due = []
        for one in compared.found:
            id_ = finding_id(self.declared.name, one)
            state, occurrence, acted = recorded.states.get(id_, ("", 0, True))
            if one.check == check.label and state == OPEN and not acted:
                due.append((id_, occurrence, one))
        return due

    def _parking(self, plan: ActionPlan) -> Callable[[str], str]:
        """Hand a plan over its cap to a run of its own, which waits for an approval. Equal plans share one run."""

        def park(plan_hash: str) -> str:
            flow, store = self.declared.flows[self.declared.plan_name], self._runtime.store
            handle, _ = block(flow.here().begin((plan,), {}))
            record = store.read(handle.at).block().record
            if record is not None and record.state in (QUEUED, HELD, WAITING):
                show = suggested_command("approvals", "show", f"{self.declared.plan_name}/{plan_hash}")
                self._tell(plan, f"waits for an approval ({plan.over}): {show}")
            return handle.id

        return park

    def refuse(self, session: Session, plan: ActionPlan, why: str) -> list[ActionOutcome]:
        """Record in its findings that a plan was rejected; nothing of it is done."""

        def reject(plan_hash: str) -> None:
            self._tell(plan, why)

        _step(session, reject, plan.hash)
        return [ActionOutcome(item.id, "refused", why) for item in plan.items]

    def _tell(self, plan: ActionPlan, text: str) -> None:
        for finding in dict.fromkeys(item.finding for item in plan.items):
            block(mark_acted(self._runtime.store, self._runtime.tenant, self.declared.name, finding, text, acted=False))

    def act(self, check: Comparison, item: PlanItem, look: SecondLook) -> ActionOutcome:
        """Carry out one action, if its finding still holds and nobody else has handled it."""
        runtime, name = self._runtime, self.declared.name
        judged = look.judge(check, item.key)
        if isinstance(judged, Unknown):
            return ActionOutcome(item.id, "unknown", judged.why)
        if judged is None:
            return ActionOutcome(item.id, "gone", "it is no longer so")
        if check.kind != "duplicates" and finding_id(name, judged) != item.finding:
            return ActionOutcome(item.id, "gone", "it is another finding now")
        rows = look.rows(check.sources[0], item.key)
        outcome = attempt(as_action(check.then), self.around, item, judged, rows)
        acted = outcome.state == "acted"
        if acted and item.ref:
            block(lower_rows(runtime.store, runtime.tenant, name, check.sources[0].origin.name))
        block(mark_acted(runtime.store, runtime.tenant, name, item.finding, outcome.text, acted=acted))
        return outcome

    # -- reporting -------------------------------------------------------------------------------

    def report(
        self,
        compared: Compared,
        recorded: RecordedRun,
        plans: list[dict[str, Any]],
        outcomes: Sequence[ActionOutcome] = (),
        *,
        dry: bool = False,
    ) -> RunReport:
        matched = self._told
        found = compared.found + self._about_sources(matched)
        complete = all(told.whole for told in matched.sources) and not compared.unsure and not matched.counts
        return RunReport(
            reconciliation=self.declared.name,
            tick=self.tick.timestamp(),
            complete=complete,
            sources=matched.sources,
            checks=[self._check_report(check, matched, compared) for check in self.checks],
            findings=found,
            ids=[finding_id(self.declared.name, one) for one in found],
            new=len(recorded.new),
            reopened=len(recorded.reopened),
            resolved=len(recorded.resolved),
            plans=plans,
            outcomes=list(outcomes),
            dry=dry,
        )

    def _check_report(self, check: Comparison, matched: Matched, compared: Compared) -> CheckReport:
        label = check.label
        return CheckReport(
            label,
            matched.counts.get(label) or sum(one.check == label for one in matched.suspects),
            sum(one.check == label for one in compared.found),
            sum(one == label for one, _ in compared.unsure),
            matched.skipped.get(label, ""),
        )


def _examples(told: SourceReading) -> list[dict[str, Any]]:
    return [{"row": example} for example in told.examples]


def _step(session: Session, function: Callable[..., Any], *args: Any) -> Any:
    """Call a method as a step: recorded, and safe to repeat."""
    own_id = None if not args else "{" + next(iter(_names(function))) + "}"
    step = Step(function, StepPlan(SAFE, DEFAULT_RETRY), name=function.__name__, own_id=own_id)
    return session.drive(session.step(step, args, {}))


def _names(function: Callable[..., Any]) -> Iterable[str]:
    import inspect

    return inspect.signature(function).parameters
