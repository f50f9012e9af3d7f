"""Engines whose batches do not land as a whole."""

from __future__ import annotations

from msgspec import structs

from twiceproof.records import Check, Conflict, Replace
from twiceproof.stores.memory import MemoryEngine


class Torn(MemoryEngine):
    """Sometimes only the first write of a batch lands."""

    def _land(self, batch, now):
        if self._number % 7 == 3:
            batch = structs.replace(batch, writes=batch.writes[:1])
        return super()._land(batch, now)


class UncheckedReads(MemoryEngine):
    """Conditions on records that were only read are not checked."""

    def _land(self, batch, now):
        kept = [write for write in batch.writes if not isinstance(write, Check)]
        return super()._land(structs.replace(batch, writes=kept), now)


class LastWriterWins(MemoryEngine):
    """Versions are not compared: an append made meanwhile is overwritten."""

    def _land(self, batch, now):
        writes = [self._latest(write) if isinstance(write, Replace) else write for write in batch.writes]
        return super()._land(structs.replace(batch, writes=writes), now)

    def _latest(self, write):
        return structs.replace(write, version=self._records[write.at].version)


class RefusedButThere(MemoryEngine):
    """Says that nothing was written, after the first write of the batch."""

    def _land(self, batch, now):
        outcome = super()._land(batch, now)
        if self._number % 11 == 5:
            found = self._records.get(batch.writes[0].at)
            self._number += 1
            return Conflict(batch.writes[0].at, found, now)
        return outcome
