"""How many runs are under way: by flow and version, before old code is taken away; by state, for whoever watches."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from ...claims.claim import CLAIM, FAILED, HELD, QUEUED, REVIEW, RUN, WAITING, claim_of
from ...drive import Operation
from ...records import Record
from ...stores.base import Store
from ..work import work_of
from .runs import OPEN_STATES

__all__ = ["COUNTED", "MOST_COUNTED", "FlowCount", "StateCounts", "count_open", "count_states"]

PAGE = 1_000
COUNTED = (*OPEN_STATES, FAILED)  # what is done needs nobody
MOST_COUNTED = 1_000  # of each state: a count is looked at every few seconds
LETTER = "letter"


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
            page = yield from store.scan(RUN, state=state, after=after, limit=PAGE)
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
    """None: another tenant's."""
    owner, flow, _ = record.at.space.split("/", 2)
    if owner != tenant:
        return None
    if record.queue.startswith(f"{tenant}/{flow}@"):
        return flow, record.queue.removeprefix(f"{tenant}/{flow}@")
    return flow, work_of(claim_of(record)).version


class StateCounts(Struct, frozen=True):
    """Of all tenants, each up to `MOST_COUNTED`."""

    runs: dict[str, int]
    claims: dict[str, int]
    letters: int


def count_states(store: Store) -> Operation[StateCounts]:
    runs, claims = {}, dict.fromkeys(COUNTED, 0)
    for state in COUNTED:
        runs[state] = yield from _count(store, RUN, state)
        if state not in (QUEUED, WAITING):  # only runs are
            claims[state] = yield from _count(store, CLAIM, state)
    return StateCounts(runs, claims, (yield from _count(store, LETTER, None)))


def _count(store: Store, kind: str, state: str | None) -> Operation[int]:
    return len((yield from store.scan(kind, state=state, limit=MOST_COUNTED)).records)
