"""App methods that programs and people call from outside of flows: claim, settle, runs, deliver, decide, worker, …"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..claims.claim import NO_RESULT, REVIEW, RUN, address_of, is_short_id, parse_space, space_of, validate_name
from ..claims.duplicates import Blocked, DuplicateCounter, most_blocked
from ..claims.error_messages import one_write_store
from ..claims.once import Once
from ..claims.results import ResultType, encode_given_result
from ..errors import Misuse
from ..flows.engine.context import giving, is_on_loop
from ..flows.flow import Flow
from ..flows.handle import AttachedHandle, Handle
from ..flows.runtime import Runtime, Tenants, own_approval, own_run
from ..flows.waits.records import ARRIVAL_KIND, Approval, Decided, Delivered, deliver, encode_payload, request_address
from ..flows.workers.due_work import DueWork
from ..keys import validate_key
from ..operations import Operation, await_, block
from ..records import Address
from .functions import step_of

if TYPE_CHECKING:
    from ..claims.acts import ActShape
    from ..flows.external_ids import IdLink
    from ..flows.history.fork import Forked
    from ..flows.history.review import SettledRun, Verdict
    from ..flows.history.run_view import RunShape, WholeRun
    from ..flows.parallel.each import Progress
    from ..flows.workers.worker import Worker

__all__ = ["Administration"]

NOTHING: Any = object()  # as opposed to the result None
LONGEST_NOTE = 2_000


class Administration:
    """The methods of an app that are called from outside of flows. A run is named by its id, or as "flow/key"."""

    runtime: Runtime
    operations: dict[str, Once]
    flows: MutableMapping[str, Flow]
    tally: DuplicateCounter
    due_work: list[DueWork]
    tenants: Tenants

    # -- runs ------------------------------------------------------------------------------------

    def runs(
        self,
        *,
        flow: str = "",
        state: str = "",
        key: str = "",
        prefix: str = "",
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
    ) -> list[RunShape]:
        """Return runs, the newest first.

        Args:
            flow: Only of this flow.
            state: Only in this state; by default in any.
            key: Only with this key.
            prefix: Only with keys that begin with this text.
            since: Only those that changed at this time or later, in seconds since 1970.
            until: Only those that changed before this time.
            limit: How many at most.
        """
        from ..flows.history.queries import ALL, EVERY_STATE, Filter, all_runs

        if state and state not in (*EVERY_STATE, ALL):
            raise Misuse(f"{state!r} is no state of a run; say one of {', '.join(EVERY_STATE)}, or {ALL}.")
        which = Filter(self.runtime.tenant, flow, key, prefix, since, until)
        states = EVERY_STATE if state in ("", ALL) else (state,)
        return block(all_runs(self.runtime.store, which, states, limit=limit))

    def history(self, run: str) -> WholeRun:
        """Return everything about one run: its steps, late evidence, and what to do next.

        Args:
            run: The run's id, or "flow/key".
        """
        from ..flows.history.queries import look_at_run

        return block(look_at_run(self.runtime.store, self._place(run)))

    def review(
        self, *, flow: str = "", since: float | None = None, until: float | None = None, limit: int = 1_000
    ) -> list[RunShape]:
        """Return the runs that wait for review.

        Args:
            flow: Only of this flow.
            since: Only those that changed at this time or later, in seconds since 1970.
            until: Only those that changed before this time.
            limit: How many at most.
        """
        return self.runs(flow=flow, state=REVIEW, since=since, until=until, limit=limit)

    def settle_run(
        self,
        run: str,
        verdict: Verdict,
        *,
        by: str,
        step: str = "",
        result: Any = NOTHING,
        evidence: str = "",
        did: bool | None = None,
        note: str = "",
    ) -> SettledRun:
        """End the review of a run.

        Args:
            run: The run's id, or "flow/key".
            verdict: "happened", "did-not-happen", "retry" (what stopped it is repaired), "undo", or "abandon".
            by: Who decided.
            step: Which step, where several are unknown.
            result: The step's result, if it happened.
            evidence: The id of the evidence to adopt as its result instead.
            did: With "undo": whether the step of unknown outcome happened.
            note: A remark that is kept with it.
        """
        from ..flows.history.review import ReviewDecision, settle_run

        kept = NO_RESULT if result is NOTHING else encode_given_result(result)
        at = self._place(run)
        word = ReviewDecision(verdict, by, note, step, kept, evidence, did)
        return block(settle_run(self.runtime.store, at, word, life=self.runtime.life_of(at), where=self.runtime.where))

    def retry_run(self, run: str, *, by: str = "") -> str:
        """Queue a run that failed, or whose flow has changed, and return its id. Steps that are done stay done.

        Args:
            run: The run's id, or "flow/key".
            by: Who asked for it: `app.acts` shows it.
        """
        from ..flows.history.review import retry_run

        return block(retry_run(self.runtime.store, self._place(run), self.runtime.where, by=by))

    def fork_run(self, run: str, *, key: str, from_step: str = "", by: str = "") -> Forked:
        """Start a new run with the input of another one.

        Args:
            run: The run's id, or "flow/key".
            key: The key of the new run.
            from_step: Keep the results of all steps before this one.
            by: Who asked for it: `app.acts` shows it.
        """
        from ..flows.history.fork import fork_run

        return block(fork_run(self.runtime.store, self._place(run), key, from_step, by=by))

    def ids(self, name: str) -> list[IdLink]:
        """Return the ids that external systems gave to the steps of a run, or the runs behind such an id.

        Args:
            name: A run's id, its key, "flow/key", or the external id.
        """
        from ..flows.external_ids import ids_named

        return block(ids_named(self.runtime.store, self.runtime.tenant, name, self.flows))

    def progress(self, run: str) -> Progress:
        """Return how far a run is: `{"reserve": {"done": 812, "failed": 3}}`.

        Args:
            run: The run's id.
        """
        from ..flows.parallel.each import progress_of

        return block(progress_of(self.runtime.store, self._place(run).space))

    def correlate(self, correlation: str) -> AbstractContextManager[None]:
        """Give runs that are called or started in a `with` block a correlation id: `with app.correlate(request_id):`.

        Args:
            correlation: The id.
        """
        return giving(correlation)

    def attach(self, run: str | None = None, *, flow: str | None = None, key: str | None = None) -> AttachedHandle:
        """Return a handle on a run of any process. Await its methods where you must not block.

        On an event loop, an id is looked up when the handle is awaited or first used.

        Args:
            run: The run's id.
            flow: The flow's name, with `key` instead of an id.
            key: The run's key.
        """
        tenant = self.runtime.tenant
        if run is not None and is_short_id(run) and is_on_loop():
            return AttachedHandle(lambda: self._look_up(tenant, run), run)
        if run is not None:
            at = self._place(run)
        elif flow is not None and key is not None:
            at = address_of(tenant, flow, validate_key(key), RUN)
        else:
            raise Misuse("app.attach needs the id of a run, or flow= and key=.")
        return AttachedHandle(self._handle_at(at))

    def _look_up(self, tenant: str, run: str) -> Operation[Handle]:
        return self._handle_at((yield from own_run(self.runtime.store, tenant, run)))

    def _handle_at(self, at: Address) -> Handle:
        known = self.flows.get(parse_space(at.space).operation)
        results = known.results if known else ResultType(_plain, "run")
        return Handle(self.runtime, at, results)

    def compensate_duplicate(
        self,
        step: Any,
        *,
        result: Any,
        by: str,
        run: str | None = None,
        flow: str | None = None,
        key: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        note: str = "",
        good_too: bool = False,
        undone: bool | None = None,
    ) -> Any:
        """Undo, once, an effect that happened a second time (two invoices for one order). Await it for an async undo.

        Args:
            step: The function under @app.step whose effect was duplicated.
            result: What the step would have returned for the duplicate. The run's own result is refused.
            by: Who found the duplicate.
            run: The run's id; or give `flow` and `key`.
            flow: The flow's name.
            key: The run's key.
            arguments: Further arguments of the undo.
            note: A remark that is kept with it.
            good_too: Allow it although the run has no record by which to tell the duplicate from the good one.
            undone: Whether an earlier undo of unknown outcome happened.
        """
        from ..flows.parallel.compensate_duplicate import DuplicateEffect, compensate

        declared = step_of(step, "app.compensate_duplicate")
        duplicate = DuplicateEffect(declared, result, arguments or {}, by, note, good_too, undone)
        drive = await_ if declared.undo is not None and declared.undo.is_async else block
        return drive(compensate(self.runtime, self._space(run, flow, key), duplicate, drive))

    def _space(self, run: str | None, flow: str | None, key: str | None) -> Operation[str]:
        if run is not None:
            return (yield from own_run(self.runtime.store, self.runtime.tenant, run)).space
        if flow is None or key is None:
            raise Misuse("app.compensate_duplicate needs to know the run: give run=, or flow= and key=.")
        return space_of(self.runtime.tenant, flow, validate_key(key))

    def _place(self, run: str) -> Address:
        return block(own_run(self.runtime.store, self.runtime.tenant, run))

    # -- waits -----------------------------------------------------------------------------------

    def deliver(self, token: str, payload: Any = None) -> Delivered:
        """End a wait by the token at the end of its callback URL. A second delivery returns the payload of the first.

        Args:
            token: The last part of the URL.
            payload: What `app.wait_for` returns.
        """
        from ..flows.waits.callbacks import deliver_by_token

        raw = encode_payload(payload, "The payload")
        return block(deliver_by_token(self.runtime.store, token, raw, mark=self.runtime.owner()))

    def deliver_to(self, *, flow: str, key: str, name: str, payload: Any = None) -> Delivered:
        """End a wait by the run's key, where there is no URL: from another part of the same program.

        Args:
            flow: The flow's name.
            key: The run's key.
            name: The name of the wait.
            payload: What `app.wait_for` returns.
        """
        from ..flows.waits.waiting import wait_name

        space = space_of(self.runtime.tenant, validate_name("flow", flow), validate_key(key))
        at = Address(space, ARRIVAL_KIND, wait_name(name))
        return block(deliver(self.runtime.store, at, encode_payload(payload, "The payload"), mark=self.runtime.owner()))

    def approvals(self, *, flow: str | None = None, limit: int = 1_000) -> list[Approval]:
        """Return the approvals that are pending.

        Args:
            flow: Only of this flow.
            limit: How many at most.
        """
        from ..flows.waits.approvals import open_approvals

        prefix = f"{self.runtime.tenant}/" if flow is None else f"{self.runtime.tenant}/{validate_name('flow', flow)}/"
        return block(open_approvals(self.runtime.store, prefix, limit))

    def decide(self, approval: str, approved: bool, *, by: str, note: str = "", shown: str | None = None) -> Decided:
        """Decide an approval. A second decision changes nothing.

        Args:
            approval: The approval's id.
            approved: Whether it is approved.
            by: Who decided.
            note: A remark that is kept with it.
            shown: The digest of what they saw; if the approval shows something else, it is refused.
        """
        from ..flows.waits.approvals import decide

        if not isinstance(approved, bool):
            raise Misuse(f"approved={approved!r} is neither yes nor no; say True or False.")
        own_approval(self.runtime.tenant, request_address(approval))
        return block(
            decide(
                self.runtime.store,
                approval,
                approved=approved,
                by=validate_key(by),
                note=note[:LONGEST_NOTE],
                shown=shown or "",
                mark=self.runtime.owner(),
            )
        )

    def acts(self, *, by: str = "", operation: str = "", key: str = "", limit: int = 100) -> list[ActShape]:
        """Return what people did: who settled, retried, cancelled, released, replayed or decided what, newest first.

        Args:
            by: Only of this person.
            operation: Only about this flow or operation; "tokens" for those about tokens.
            key: Only about this key.
            limit: How many at most.
        """
        from ..claims.acts import list_acts

        which = {"by": by, "operation": operation, "key": key, "limit": limit}
        return list(block(list_acts(self.runtime.store, self.runtime.tenant, **which)).acts)  # type: ignore[arg-type]

    # -- duplicates -----------------------------------------------------------------------------

    def duplicates(
        self, *, flow: str = "", source: str | None = None, since: float = 0.0, limit: int = 100
    ) -> list[Blocked]:
        """Return the keys with most blocked duplicates, over all processes.

        Args:
            flow: Only of this flow or operation.
            source: Only those that came in through this source.
            since: Only from this time on, in seconds since 1970, to the hour.
            limit: How many at most.
        """
        self.tally.flush()
        which = {"operation": flow, "source": source, "since": since, "limit": limit}
        return block(most_blocked(self.runtime.store, self.runtime.tenant, **which))  # type: ignore[arg-type]

    # -- workers ---------------------------------------------------------------------------------

    def worker(self, *, concurrency: int = 10, flows: Collection[str] = ()) -> Worker:
        """Return a worker for this process. `twiceproof work` runs one; scripts call `.run(until_idle=True)`.

        While it runs, `twiceproof workers list` shows it, unless it ends when idle.

        Args:
            concurrency: How many runs it works on at once.
            flows: The names of the flows whose runs, schedules and polls it serves; by default all.
        """
        from ..flows.workers.presence import Presence
        from ..flows.workers.worker import Worker

        if self.runtime.store.batch_limit == 1:
            raise one_write_store("A worker")
        unknown = sorted(set(flows) - set(self.flows))
        if unknown:
            known = ", ".join(sorted(self.flows)) or "none"
            raise Misuse(f"No flow is called {', '.join(unknown)}; those that are declared: {known}.")
        for flow in self.flows.values():
            if not flows or flow.name in flows:
                flow.refuse_best_effort()
        presence = partial(Presence, self.runtime.store, self.runtime.owner(), lambda: self._served(flows), concurrency)
        beside = [] if flows else [make() for make in self.runtime.root.beside_worker]
        worker = Worker(
            self.runtime, self.due_work, concurrency=concurrency, flows=flows, presence=presence, beside=beside
        )
        self.tenants.workers.add(worker)
        return worker

    def _served(self, flows: Collection[str]) -> list[str]:
        chosen = [flow for flow in list(self.flows.values()) if not flows or flow.name in flows]
        return [f"{flow.name}@{version}" for flow in chosen for version in flow.versions]


def _plain() -> object:
    """The types of a flow that is not declared here: its results are plain JSON."""
