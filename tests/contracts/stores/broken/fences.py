"""Fences that go back, stand still or move when they must not; versions that come back."""

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks
from twiceproof.records import Insert, Remove, Replace, Written
from twiceproof.stores.memory import MemoryEngine


class OwnFences(MemoryEngine):
    """Draws its fences in its own way."""

    def fence_for(self, now, old):
        raise NotImplementedError

    def _land(self, batch, now):
        olds = {write.at: self._records.get(write.at) for write in batch.writes}
        outcome = super()._land(batch, now)
        if not isinstance(outcome, Written):
            return outcome
        for write in batch.writes:
            if isinstance(write, Insert | Replace) and write.draw:
                fence = self.fence_for(now, olds[write.at])
                self._records[write.at] = structs.replace(self._records[write.at], fence=fence)
                outcome = structs.replace(outcome, fence=fence)
        return outcome


@breaks("fences")
class FenceFromTheWallClock(OwnFences):
    def fence_for(self, now, old):
        return int(now * 1_000_000)


@breaks("fences", "writes")
class FenceRestartsAfterRemoval(OwnFences):
    """Counts in the record, so the count goes with it."""

    def fence_for(self, now, old):
        return (old.fence if old else 0) + 1


@breaks("fences", "writes", "concurrency")
class DrawKeepsTheOldFence(OwnFences):
    def fence_for(self, now, old):
        return old.fence if old and old.fence else self._number


@breaks("fences", "writes", "concurrency")
class FencesGoDown(OwnFences):
    def fence_for(self, now, old):
        return 1_000_000 - self._number


@breaks("writes", "concurrency")
class HeartbeatChangesTheFence(MemoryEngine):
    def _apply(self, write, nonce, now):
        if isinstance(write, Replace) and write.fence is not None and write.lease is not None:
            write = structs.replace(write, draw=True)
        super()._apply(write, nonce, now)


@breaks("writes", "batches")
class FenceToldIsNotTheFenceDrawn(MemoryEngine):
    def _land(self, batch, now):
        outcome = super()._land(batch, now)
        if isinstance(outcome, Written) and any(isinstance(w, Replace) and w.draw for w in batch.writes):
            return structs.replace(outcome, fence=outcome.fence + 1)
        return outcome


@breaks("fences", "batches")
class VersionsComeBack(MemoryEngine):
    """Versions count per record, from one: a removed and inserted record looks unchanged."""

    def _land(self, batch, now):
        before = {write.at: self._records.get(write.at) for write in batch.writes}
        outcome = super()._land(batch, now)
        if not isinstance(outcome, Written):
            return outcome
        for write in batch.writes:
            if isinstance(write, Insert | Replace):
                old = before[write.at]
                version = str(int(old.version) + 1 if old else 1)
                self._records[write.at] = structs.replace(self._records[write.at], version=version)
                outcome = structs.replace(outcome, version=version)
        return outcome


@breaks("fences", "writes", "batches")
class VersionIsTheHashOfTheBody(MemoryEngine):
    """An entity tag: the same content has the same version."""

    def _land(self, batch, now):
        outcome = super()._land(batch, now)
        if isinstance(outcome, Written):
            for write in batch.writes:
                if not isinstance(write, Remove) and write.at in self._records:
                    record = self._records[write.at]
                    version = str(abs(hash((record.body, record.state))))
                    self._records[write.at] = structs.replace(record, version=version)
                    outcome = structs.replace(outcome, version=version)
        return outcome
