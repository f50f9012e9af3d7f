"""Engines that each break one promise."""

from __future__ import annotations

from msgspec import structs

from twiceproof.records import Insert, Record, Remove, Replace, Written
from twiceproof.stores.memory import MemoryEngine

CLAIM = "claim"


class Rewriting(MemoryEngine):
    """Changes a batch's writes before they are checked."""

    def _land(self, batch, now):
        writes = [self.rewrite(write, self._records.get(write.at)) for write in batch.writes]
        return super()._land(structs.replace(batch, writes=writes), now)

    def rewrite(self, write, found):
        raise NotImplementedError


class FenceBlind(Rewriting):
    def rewrite(self, write, found):
        shown = isinstance(write, Replace) and write.fence is not None and found is not None
        return structs.replace(write, fence=found.fence) if shown else write


class ReleaseByAnybody(Rewriting):
    def rewrite(self, write, found):
        shown = isinstance(write, Remove) and write.fence is not None and found is not None
        return structs.replace(write, fence=found.fence) if shown else write


class InsertOverwrites(Rewriting):
    """Inserts as if nothing were there: a record that was written meanwhile is overwritten."""

    def rewrite(self, write, found):
        if not isinstance(write, Insert) or found is None or write.at.kind != CLAIM:
            return write
        fields = {name: getattr(write, name) for name in Insert.__struct_fields__}
        return Replace(**fields, version=found.version)


class VersionBlind(Rewriting):
    def rewrite(self, write, found):
        shown = isinstance(write, Replace) and write.version is not None and found is not None
        return structs.replace(write, version=found.version) if shown else write


class ShortLease(Rewriting):
    def rewrite(self, write, found):
        leased = isinstance(write, Insert | Replace) and write.lease is not None
        return structs.replace(write, lease=write.lease / 2) if leased else write


class LongLease(Rewriting):
    def rewrite(self, write, found):
        leased = isinstance(write, Insert | Replace) and write.lease is not None
        return structs.replace(write, lease=write.lease * 3) if leased else write


class RenewalForgotten(MemoryEngine):
    """Reports a renewal as written, and leaves the lease unchanged."""

    def _apply(self, write, nonce, now):
        old = self._records.get(write.at)
        super()._apply(write, nonce, now)
        if isinstance(write, Replace) and write.body is None and old is not None and write.at.kind == CLAIM:
            self._records[write.at] = structs.replace(self._records[write.at], lease_until=old.lease_until)


class FenceRestarts(MemoryEngine):
    """Keeps the counter in the record, so it is lost with the record."""

    def _land(self, batch, now):
        olds = {write.at: self._records.get(write.at) for write in batch.writes}
        outcome = super()._land(batch, now)
        if isinstance(outcome, Written):
            for write in batch.writes:
                old = olds[write.at]
                if isinstance(write, Insert | Replace) and write.draw:
                    fence = (old.fence if old else 0) + 1
                    self._records[write.at] = structs.replace(self._records[write.at], fence=fence)
                    outcome = structs.replace(outcome, fence=fence)
        return outcome


class DrawsOnlyOnce(Rewriting):
    """A late heartbeat after the end finds its fence, and makes the claim held again."""

    def rewrite(self, write, found):
        ends = isinstance(write, Replace) and write.fence is not None and write.draw
        return structs.replace(write, draw=False) if ends else write


class ResultDecays(MemoryEngine):
    """A replay returns another result every time."""

    def fetch(self, addresses):
        answers = super().fetch(addresses)
        return [structs.replace(answer, record=self._decayed(answer.record)) for answer in answers]

    def _decayed(self, record: Record | None):
        if record is None or record.state != "done":
            return record
        self._number += 1
        return structs.replace(record, body=record.body.replace('"result":"', f'"result":"{self._number} '))


class StaleReads(MemoryEngine):
    """Reads come from a copy that is refreshed now and then."""

    def fetch(self, addresses):
        now = self._clock.now()
        if not hasattr(self, "_copy") or now - self._copied_at > 0.05:
            self._copy, self._copied_at = dict(self._records), now
        return [
            structs.replace(found, record=self._copy.get(found.record.at)) if found.record else found
            for found in super().fetch(addresses)
        ]


class PurgesHeld(MemoryEngine):
    """Forgets by age, without regard to the state."""

    def commit(self, batches):
        now = self._clock.now()
        old = [at for at, record in self._records.items() if record.state == "held" and now - record.created_at > 0.1]
        for at in old:
            del self._records[at]
        return super().commit(batches)


class LosesWrites(MemoryEngine):
    """Every twentieth write is acknowledged and not there."""

    def _apply(self, write, nonce, now):
        if self._number % 20:
            super()._apply(write, nonce, now)


class LateRequests(MemoryEngine):
    """A request that was sent twice, because no answer came, lands twice: the second time later, without its
    condition.
    """

    def __init__(self, clock):
        super().__init__(clock)
        self._nonces: set[str] = set()
        self._late: list = []

    def commit(self, batches):
        for batch in batches:
            if batch.nonce in self._nonces and isinstance(batch.writes[0], Insert):
                self._late.append(batch)
            self._nonces.add(batch.nonce)
        answers = super().commit(batches)
        for batch in self._late:
            with self._mutex:
                if self._records.get(batch.writes[0].at) is None:
                    self._land(batch, self._clock.now())
                    self._late.remove(batch)
                    break
        return answers
