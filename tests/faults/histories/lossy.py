"""An engine that sometimes loses the answer to its commit: for stores without a network to cut."""

from __future__ import annotations

from random import Random

from twiceproof.stores.base import Disconnected


class Lossy:
    def __init__(self, inner, rng: Random, rate: float = 0.02) -> None:
        self.inner = inner
        self.rng = rng
        self.rate = rate

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def commit(self, batches):
        answers = self.inner.commit(batches)
        if self.rng.random() < self.rate:
            raise Disconnected(OSError("reply lost"), sent=True)
        return answers
