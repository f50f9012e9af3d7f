"""How far a run is: its ledger's entries, counted by step and state. From any process."""

from __future__ import annotations

from collections import Counter

from ...drive import Operation
from ...stores.base import Store
from ..entry import KIND
from ..names import stem_of

__all__ = ["Progress", "progress_of"]

PAGE = 1_000
Progress = dict[str, dict[str, int]]  # step -> state -> how many


def progress_of(store: Store, space: str) -> Operation[Progress]:
    counts: dict[str, Counter[str]] = {}
    after: str | None = None
    while True:
        page = yield from store.scan(KIND, space=space, after=after, limit=PAGE)
        for record in page.records:
            counts.setdefault(stem_of(record.at.key), Counter())[record.state] += 1
        after = page.after
        if after is None:
            return {step: dict(states) for step, states in counts.items()}
