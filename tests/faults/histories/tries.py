"""Counts, for each write, the tries without an answer: each of them may have landed."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec import Struct

from twiceproof.records import Batch, Conflict, Insert, Written

NOTHING_WRITTEN = object()  # answers of a store that are certain


class Tried(Struct):
    unheard: int = 0
    landed: bool = False  # the last try did


class Tries:
    """Wraps an engine."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._tried: defaultdict[str, Tried] = defaultdict(Tried)  # by nonce

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, batches):
        try:
            answers = self.inner.commit(batches)
        except Exception:
            for batch in batches:
                self._tried[batch.nonce].unheard += 1
            raise
        for batch, answer in zip(batches, answers, strict=True):
            if batch.nonce in self._tried:
                self._tried[batch.nonce].landed = isinstance(answer, Written)
        return answers

    def extra(self, batch: Batch, answer: Any) -> int:
        """Return how often this write may have landed in addition to its answer. Called once, when it is over."""
        tried = self._tried.pop(batch.nonce, None)
        if tried is None or batch.writes[0].at.kind != "claim" or answer is NOTHING_WRITTEN:
            return 0
        if isinstance(answer, Conflict):
            return 0
        if isinstance(answer, Written) and not tried.landed:
            return _most(batch, tried.unheard) - 1  # one of the unanswered tries was recognised by its nonce
        return _most(batch, tried.unheard)


def _most(batch: Batch, tries: int) -> int:
    """Limit the count. Only an insert can land more than twice, after a removal; a heartbeat that lands several times
    is like a slow one.
    """
    return tries if isinstance(batch.writes[0], Insert) else min(tries, 1)
