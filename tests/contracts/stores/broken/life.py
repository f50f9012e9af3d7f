"""Stores that do not survive a fork or their own end."""

from tests.contracts.stores.broken.catalogue import breaks, breaks_above
from twiceproof.stores.base import Finding
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


@breaks("lifecycle")
class UnusableAfterAFork(MemoryEngine):
    """Notices the fork and gives up."""

    def abandon(self):
        self._records = None


@breaks("lifecycle")
class ClosesOnlyOnce(MemoryEngine):
    _closed = False

    def close(self):
        if self._closed:
            raise RuntimeError("closed before")
        self._closed = True


@breaks("lifecycle")
class DoctorWithoutALevel(MemoryEngine):
    def examine(self):
        return [Finding("fine", "durability", "all is well")]


@breaks_above("lifecycle")
class NonceOfTheParent(GroupedStore):
    """A forked child goes on counting where its parent was: two writes, one nonce."""

    def __init__(self, engine, *, clock):
        count = iter(range(1, 1_000_000))
        super().__init__(engine, clock=clock, ids=lambda: f"stem-{next(count)}")
