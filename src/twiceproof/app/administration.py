"""What is asked from outside: runs, history, review, settle, retry, fork, deliver, decide, worker, duplicates."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

from ..claims.claim import NO_RESULT, REVIEW, RUN, address_of
from ..claims.duplicates import Blocked, DuplicateCounter, most_blocked
from ..claims.policy import Duration
from ..claims.results import encode_given_result
from ..effects.duplicate_alerts import EVENTS, DuplicateAlerts, Hook
from ..effects.incidents import Incidents
from ..errors import Misuse
from ..flows.external_ids import IdLink, ids_of, runs_behind
from ..flows.flow import Flow
from ..flows.history.fork import Forked, fork_run
from ..flows.history.queries import ALL, EVERY_STATE, Filter, list_runs, look_at_run
from ..flows.history.review import SettledRun, Verdict, Word, retry_run, settle_run
from ..flows.history.run_view import RunShape, WholeRun
from ..flows.runtime import Runtime, own_run
from ..flows.workers.due_work import DueWork
from ..flows.workers.presence import Presence
from ..flows.workers.tenants import Tenants
from ..flows.workers.worker import Worker
from ..keys import validate_key
from ..keys.duration import seconds
from ..operations import Operation, block
from ..records import Address, Record
from ..stores.grouped import GroupedStore

__all__ = ["DuplicatesApi", "HistoryApi", "WorkApi"]


NOTHING: Any = object()  # as opposed to the result None


class HistoryApi:
    """The part of an app that is about runs that were. A run is named by its id, or as "flow/key"."""

    parts: Runtime
    flows: MutableMapping[str, Flow]

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
        """Runs, those in review first; of every `state` unless one is named.

        `since` and `until` are the store's times, in seconds since 1970.
        """
        if state and state not in (*EVERY_STATE, ALL):
            raise Misuse(f"{state!r} is no state of a run; say one of {', '.join(EVERY_STATE)}, or {ALL}.")
        which = Filter(self.parts.tenant, flow, key, prefix, since, until)
        states = EVERY_STATE if state in ("", ALL) else (state,)
        return list(block(list_runs(self.parts.store, which, states, limit=limit)).runs)

    def history(self, run: str) -> WholeRun:
        """Everything about one run: its steps, what late holders reported, and the next move."""
        return block(look_at_run(self.parts.store, self._place(run)))

    def review(
        self, *, flow: str = "", since: float | None = None, until: float | None = None, limit: int = 1_000
    ) -> list[RunShape]:
        """Runs that wait for a person."""
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
        """A person's word about a run in review: "happened" (with the step's result, or a piece of evidence adopted
        as such), "did-not-happen", "retry" (what stopped it is repaired), "undo" (with `did=` where an outcome is
        unknown), or "abandon"."""
        kept = NO_RESULT if result is NOTHING else encode_given_result(result)
        at = self._place(run)
        word = Word(verdict, by, note, step, kept, evidence, did)
        return block(settle_run(self.parts.store, at, word, life=self.parts.life_of(at), where=self.parts.where))

    def retry_run(self, run: str) -> str:
        """Queue a run that failed, or whose flow had changed under it: what is done stays done."""
        return block(retry_run(self.parts.store, self._place(run), self.parts.where))

    def fork_run(self, run: str, *, key: str, from_step: str = "") -> Forked:
        """Start the same input under a new key, as something new; with `from_step`, what came before is kept."""
        return block(fork_run(self.parts.store, self._place(run), key, from_step))

    def ids(self, name: str) -> list[IdLink]:
        """From a run, or the key of one, to the ids that its steps got outside; or from such an id back to runs."""
        store, tenant = self.parts.store, self.parts.tenant
        links = block(runs_behind(store, tenant, name))
        with contextlib.suppress(Misuse):  # the outside's ids may look like a run's, and be none
            links += block(ids_of(store, self._place(name)))
        for flow in self.flows:
            links += block(ids_of(store, address_of(tenant, flow, validate_key(name), RUN)))
        return list(dict.fromkeys(links))

    def _place(self, run: str) -> Address:
        return block(own_run(self.parts.store, self.parts.tenant, run))


class LookAround(DueWork):
    """When a worker starts, it tells of what waits for somebody."""

    kind = "notice"

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents

    def queues(self) -> list[str]:
        return []

    def prepare(self) -> Operation[None]:
        yield from self._incidents.look_around()

    def carry_out(self, record: Record) -> Operation[None]:
        yield from ()  # nothing of it falls due


class DuplicatesApi:
    """The part of an app that is about repeats that were answered without doing the work."""

    parts: Runtime
    tally: DuplicateCounter
    duties: list[DueWork]
    incidents: list[Incidents]

    def duplicates(
        self, *, flow: str = "", source: str | None = None, since: float = 0.0, limit: int = 100
    ) -> list[Blocked]:
        """The keys with most blocked repeats, over all processes. `since` is in seconds since 1970, to the hour."""
        self.tally.flush()
        which = {"operation": flow, "source": source, "since": since, "limit": limit}
        return block(most_blocked(self.parts.store, self.parts.tenant, **which))  # type: ignore[arg-type]

    def notify_duplicates(self, hook: Hook, *, quiet: Duration = "10m", threshold: int = 10, name: str = "") -> None:
        """Tell `hook` when repeats of a key were blocked `threshold` times in this process since it was last told.

        One message per key and quiet period, whichever process sends it. `name` tells hooks apart across processes;
        without one, the first hook of one process is the first hook of another.
        """
        name = name or str(len(self.tally.told))
        self.tally.told.append(
            DuplicateAlerts(
                self.parts.store,
                hook,
                name=name,
                quiet=seconds(quiet, name="quiet"),
                threshold=threshold,
                clock=self.parts.clock,
            )
        )

    def notify(
        self, hook: Hook, *, on: str | Collection[str] = EVENTS, quiet: Duration = "10m", name: str = ""
    ) -> None:
        """Tell `hook` when a run or a claim waits for review ("review"), has failed for good ("failure"), or a delivery
        was kept aside because it could not be taken in ("dead-letter").

        One message per flow or webhook, event and quiet period, whichever process sends it; what comes meanwhile is in
        the next one. Nobody waits for it: a run goes on. `name` tells hooks apart across processes; without one, the
        first hook of one process is the first hook of another.
        """
        store = self.parts.store
        if not isinstance(store, GroupedStore):
            raise Misuse("This store does not tell what is written to it; open one by its URL: sqlite:///shop.db")
        incidents = Incidents(
            store,
            hook,
            on=on,
            quiet=seconds(quiet, name="quiet"),
            name=name or str(len(self.incidents)),
            clock=self.parts.clock,
        )
        self.incidents.append(incidents)
        store.heard.append(incidents.hear)
        self.duties.append(LookAround(incidents))


class WorkApi:
    """The part of an app that is about workers."""

    parts: Runtime
    flows: Mapping[str, Flow]
    duties: list[DueWork]
    tenants: Tenants

    def worker(self, *, concurrency: int = 10, flows: Collection[str] = ()) -> Worker:
        """A worker in this process; `twiceproof work` runs one. `app.worker().run(until_idle=True)` is for scripts.

        `flows` are the names of those whose runs, schedules and polls it serves; without any, all that are declared.
        While it runs it is listed by `twiceproof workers list`, unless it ends when it is idle.
        """
        unknown = sorted(set(flows) - set(self.flows))
        if unknown:
            known = ", ".join(sorted(self.flows)) or "none"
            raise Misuse(f"No flow is called {', '.join(unknown)}; those that are declared: {known}.")
        for flow in self.flows.values():
            if not flows or flow.name in flows:
                flow.refuse_best_effort()
        presence = Presence(self.parts.store, self.parts.owner(), lambda: self._served(flows), concurrency)
        worker = Worker(self.parts, self.duties, concurrency=concurrency, flows=flows, presence=presence)
        self.tenants.workers.add(worker)
        return worker

    def _served(self, flows: Collection[str]) -> list[str]:
        chosen = [flow for flow in list(self.flows.values()) if not flows or flow.name in flows]
        return [f"{flow.name}@{version}" for flow in chosen for version in flow.versions]
