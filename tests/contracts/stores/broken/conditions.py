"""Conditions that are not checked, or not told."""

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks
from twiceproof.records import Check, Conflict, Insert, Remove, Replace, Written
from twiceproof.stores.base import fits
from twiceproof.stores.memory import MemoryEngine


class Lenient(MemoryEngine):
    """Lets writes through that do not fit."""

    def overlooks(self, write, found):
        raise NotImplementedError

    def _land(self, batch, now):
        for write in batch.writes:
            found = self._records.get(write.at)
            if not fits(write, found) and not self.overlooks(write, found):
                return Conflict(write.at, found, now)
        self._number += 1
        for write in batch.writes:
            self._apply(write, batch.nonce, now)
        return Written(str(self._number), self._number, now)


@breaks("writes", "fences", "concurrency")
class NoFenceCheck(Lenient):
    def overlooks(self, write, found):
        return found is not None and getattr(write, "fence", None) is not None


@breaks("writes", "fences", "due", "concurrency", "batches")
class VersionIgnoredOnReplace(Lenient):
    def overlooks(self, write, found):
        return isinstance(write, Replace) and found is not None and write.version is not None


@breaks("writes", "fences", "batches")
class VersionIgnoredOnRemove(Lenient):
    def overlooks(self, write, found):
        return isinstance(write, Remove) and found is not None and write.version is not None


@breaks("writes", "batches", "concurrency")
class CheckIgnored(Lenient):
    def overlooks(self, write, found):
        return isinstance(write, Check)


@breaks("writes", "concurrency")
class AbsenceNotChecked(Lenient):
    def overlooks(self, write, found):
        return isinstance(write, Check) and write.absent


@breaks("writes", "batches", "fences", "reads", "concurrency")
class InsertOverwrites(Lenient):
    """An upsert by key: the second writer silently wins."""

    def overlooks(self, write, found):
        return isinstance(write, Insert)


@breaks("writes", "batches", "reads", "concurrency")
class ConflictWithoutWhatWasFound(MemoryEngine):
    def _land(self, batch, now):
        outcome = super()._land(batch, now)
        return structs.replace(outcome, found=None) if isinstance(outcome, Conflict) else outcome


@breaks("writes", "fences", "reads", "concurrency", "batches", "lists")
class RemoveLeavesATombstone(MemoryEngine):
    """The record stays, marked as removed: an insert finds it in the way."""

    def _apply(self, write, nonce, now):
        if isinstance(write, Remove):
            found = self._records[write.at]
            self._records[write.at] = structs.replace(found, state="removed", due_at=None)
        else:
            super()._apply(write, nonce, now)
