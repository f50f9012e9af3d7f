"""What an app offers to whoever carries out its runs."""

from __future__ import annotations

from collections.abc import Mapping

from ..flow import Flow
from ..parts import Parts
from ..tenants import Tenants
from .duty import Duty
from .worker import Worker

__all__ = ["WorkApi"]


class WorkApi:
    """The part of an app that is about workers."""

    parts: Parts
    flows: Mapping[str, Flow]
    duties: list[Duty]
    tenants: Tenants

    def worker(self, *, concurrency: int = 10) -> Worker:
        """A worker in this process; `twiceproof work` runs one. `app.worker().run(until_idle=True)` is for scripts."""
        for flow in self.flows.values():
            flow.refuse_best_effort()
        worker = Worker(self.parts, self.duties, concurrency=concurrency)
        self.tenants.workers.add(worker)
        return worker
