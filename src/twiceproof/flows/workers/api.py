"""What an app offers to whoever carries out its runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...errors import Misuse
from ..flow import Flow
from ..parts import Parts
from ..tenants import Tenants
from .duty import Duty
from .presence import Presence
from .worker import Worker

__all__ = ["WorkApi"]


class WorkApi:
    """The part of an app that is about workers."""

    parts: Parts
    flows: Mapping[str, Flow]
    duties: list[Duty]
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
