"""Batches that land in part, or tell the wrong thing."""

import itertools

from tests.contracts.stores.broken.catalogue import breaks, breaks_above
from twiceproof.operations import Inline
from twiceproof.records import Batch, Conflict, Written
from twiceproof.stores.base import fits
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.validate import _validate_write, validate_address


@breaks("batches", "writes")
class HalfABatchLands(MemoryEngine):
    """Checks and applies one write after the other, and does not roll back."""

    def _land(self, batch, now):
        self._number += 1
        for write in batch.writes:
            found = self._records.get(write.at)
            if not fits(write, found):
                return Conflict(write.at, found, now)
            self._apply(write, batch.nonce, now)
        return Written(str(self._number), self._number, now)


@breaks("batches")
class ConflictNamesTheLastMisfit(MemoryEngine):
    def _land(self, batch, now):
        misfits = [write.at for write in batch.writes if not fits(write, self._records.get(write.at))]
        if misfits:
            return Conflict(misfits[-1], self._records.get(misfits[-1]), now)
        return super()._land(batch, now)


@breaks("batches")
class EachWriteItsOwnVersion(MemoryEngine):
    def _apply(self, write, nonce, now):
        self._number += 1 if len(self._records) % 2 else 0
        super()._apply(write, nonce, now)

    def _land(self, batch, now):
        if len(batch.writes) == 1:
            self._apply = super()._apply
        outcome = super()._land(batch, now)
        self.__dict__.pop("_apply", None)
        return outcome


@breaks("batches", "concurrency")
class NeighboursHarmedByAConflict(MemoryEngine):
    """One transaction for the whole group, rolled back for one misfit."""

    def commit(self, batches):
        with self._mutex:
            now = self._clock.now()
            for batch in batches:
                for write in batch.writes:
                    found = self._records.get(write.at)
                    if not fits(write, found) and len(batches) > 1:
                        return [Conflict(write.at, found, now)] * len(batches)
        return super().commit(batches)


@breaks_above("batches")
class NeighboursHarmedByABadBatch(GroupedStore):
    """The database refuses one batch, and everybody in the commit is told so."""

    def _commit(self, batches):
        answers = super()._commit(batches)
        errors = [answer for answer in answers if isinstance(answer, RuntimeError)]
        return errors[:1] * len(batches) if errors else answers


@breaks_above("batches", "concurrency")
class IndexRecordsAreDropped(GroupedStore):
    """Takes an index record, and never writes it."""

    def _with_index_batches(self, batches):
        return batches


@breaks_above("batches")
class IndexRecordsAreWrittenByWinnersOnly(GroupedStore):
    """One batch with the write, as far as the engine can tell: an index record that exists prevents both."""

    def _commit(self, batches):
        taken = [b.also is not None and self.engine.fetch([b.also.writes[0].at])[0] for b in batches]
        answers = super()._commit(batches)
        return [
            Conflict(batch.also.writes[0].at, there.record, there.now) if there and there.record else answer
            for batch, there, answer in zip(batches, taken, answers, strict=True)
        ]


@breaks_above("batches", "concurrency")
class AnswersForIndexRecordsAreHandedOut(GroupedStore):
    """The answers of the whole commit, from its end."""

    def _commit(self, batches):
        every = self._with_index_batches(batches)
        return super()._commit(every)[-len(batches) :] if every is not batches else super()._commit(batches)


class Unchecked(GroupedStore):
    """Checks each write of a batch, but not how they stand together."""

    def write(self, *writes, also=None, linked=()):
        for write in (*writes, *linked):
            validate_address(write.at)
            _validate_write(write)
        beside = also and Batch((also,), self._ids())
        return self._writes.request(Batch((*writes, *linked), self._ids(), beside, ("another",) * bool(linked)))


@breaks("batches")
class LinkedSpacesLandApart(MemoryEngine):
    """Each space by itself, one after the other: what does not fit in one does not stop the others."""

    def _land(self, batch, now):
        parts = [list(part) for _, part in itertools.groupby(batch.writes, lambda write: write.at.space)]
        outcomes = [super(LinkedSpacesLandApart, self)._land(Batch(part, batch.nonce), now) for part in parts]
        return next((outcome for outcome in outcomes if isinstance(outcome, Conflict)), outcomes[0])


@breaks("batches")
class ConflictsOfLinkedSpacesAreForgotten(MemoryEngine):
    """The conditions of the first space alone are looked at; what another space holds already stays as it is."""

    def _land(self, batch, now):
        mine = [write for write in batch.writes if write.at.space == batch.space]
        others = [write for write in batch.writes if write.at.space != batch.space]
        fitting = [write for write in others if fits(write, self._records.get(write.at))]
        return super()._land(Batch([*mine, *fitting], batch.nonce), now)


@breaks_above("batches")
class BatchesAreNotLookedAt(Unchecked):
    """Two spaces, one address twice, too many, none at all."""


@breaks_above("concurrency", "batches", "fences")
class CheckThenInsert(GroupedStore):
    """Looks whether a record is there, and writes a moment later, with no lock in between."""

    def write(self, *writes, **more):
        super().write(*writes, **more)  # refuses what must be refused
        batch = Batch((*writes, *more.get("linked", ())), self._ids())
        return Inline(lambda: self._look_then_write(batch))

    def _look_then_write(self, batch):
        for write in batch.writes:
            found = self.engine.fetch([write.at])[0]
            if not fits(write, found.record):
                return Conflict(write.at, found.record, found.now)
        _another_thread_runs()
        engine = self.engine
        engine._number += 1
        number, now = engine._number, engine._clock.now()
        for write in batch.writes:
            engine._apply(write, batch.nonce, now)
        return Written(str(number), number, now)


def _another_thread_runs():
    import time

    time.sleep(0.0005)
