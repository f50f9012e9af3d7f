"""Reads that are late."""

from tests.contracts.stores.broken.catalogue import breaks
from twiceproof.records import Found
from twiceproof.stores.memory import MemoryEngine

EVERYWHERE = ("batches", "concurrency", "due", "fences", "lifecycle", "reads", "refusals", "writes")


@breaks("concurrency", "refusals", "writes", "reads", "fences", "lists", "batches")
class StaleRead(MemoryEngine):
    """Reads from a cache that writes do not mend."""

    def __init__(self, clock):
        super().__init__(clock)
        self._cache = {}

    def fetch(self, addresses):
        now = self._clock.now()
        found = super().fetch(addresses)
        return [Found(self._cache.setdefault(f_at, f.record), now) for f_at, f in zip(addresses, found, strict=True)]


@breaks(*EVERYWHERE)
class ReplicaOneWriteBehind(MemoryEngine):
    """Reads from a replica that lags by one write."""

    def __init__(self, clock):
        super().__init__(clock)
        self._replica = {}

    def commit(self, batches):
        replica = dict(self._records)
        outcomes = super().commit(batches)
        self._replica = replica
        return outcomes

    def fetch(self, addresses):
        return [Found(self._replica.get(at), self._clock.now()) for at in addresses]


@breaks("reads", "batches")
class AnswersMixedUp(MemoryEngine):
    """Several reads at once get each other's answers."""

    reads_first = False

    def fetch(self, addresses):
        return list(reversed(super().fetch(addresses)))
