"""How many runs are under way, by flow and version: what must be asked before old code is taken away."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from ...claims.claim import HELD, KIND, QUEUED, REVIEW, WAITING, claim_of
from ...drive import Operation
from ...records import Record
from ...stores.base import Store
from ..work import work_of
from .runs import OPEN_STATES

__all__ = ["FlowCount", "count_open"]

PAGE = 1_000


class FlowCount(Struct, frozen=True):
    """One version of one flow, and how many of its runs are in which state."""

    flow: str
    version: str
    held: int = 0
    queued: int = 0
    waiting: int = 0
    review: int = 0
    here: bool | None = None  # whether an app carries it out; None: no app was asked

    @property
    def open(self) -> int:
        return self.held + self.queued + self.waiting + self.review

    def with_here(self, here: bool) -> FlowCount:
        return structs.replace(self, here=here)

    def shape(self) -> dict[str, Any]:
        return {**structs.asdict(self), "open": self.open}


def count_open(store: Store, tenant: str) -> Operation[list[FlowCount]]:
    """By the queue a run stands in; one in review stands in none, and is asked for its version."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for state in OPEN_STATES:
        after: str | None = None
        while True:
            page = yield from store.scan(KIND, state=state, after=after, limit=PAGE)
            for record in page.records:
                name = _version_of(record, tenant)
                if name is not None:
                    states = counts.setdefault(name, dict.fromkeys((HELD, QUEUED, WAITING, REVIEW), 0))
                    states[state] += 1
            if page.after is None:
                break
            after = page.after
    return [
        FlowCount(flow, version, states[HELD], states[QUEUED], states[WAITING], states[REVIEW])
        for (flow, version), states in sorted(counts.items())
    ]


def _version_of(record: Record, tenant: str) -> tuple[str, str] | None:
    """None: another tenant's, or no run."""
    owner, flow, _ = record.at.space.split("/", 2)
    if owner != tenant:
        return None
    if record.queue.startswith(f"{tenant}/{flow}@"):
        return flow, record.queue.removeprefix(f"{tenant}/{flow}@")
    claim = claim_of(record)
    return (flow, work_of(claim).version) if claim.work else None
