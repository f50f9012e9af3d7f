"""Due records in the wrong order, to the wrong caller, or for ever."""

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks
from twiceproof.records import Due, Remove, Replace
from twiceproof.stores.memory import MemoryEngine


class OwnDue(MemoryEngine):
    """Chooses, orders and hides in its own way."""

    def chooses(self, record, kind, queues, now):
        return record.at.kind == kind and record.queue in queues and record.due_at is not None and record.due_at <= now

    def order(self, record):
        return record.due_at

    def waits(self, record, kind, queues):
        return record.at.kind == kind and record.queue in queues and record.due_at is not None

    def due(self, kind, queues, limit, hide):
        with self._mutex:
            now = self._clock.now()
            ripe = [r for r in self._records.values() if self.chooses(r, kind, queues, now)]
            hidden = [self._hide(record, now + hide) for record in sorted(ripe, key=self.order)[:limit]]
            waiting = [r.due_at for r in self._records.values() if self.waits(r, kind, queues)]
            return Due(hidden, max(0.0, min(waiting) - now) if waiting else None, now)


@breaks("due")
class DueInOrderOfTheKeys(OwnDue):
    def order(self, record):
        return record.at.key


@breaks("due")
class DueInOrderOfCreation(OwnDue):
    def order(self, record):
        return record.created_at


@breaks("due")
class NewestFirst(OwnDue):
    def order(self, record):
        return -record.due_at


@breaks("due")
class DueNotHidden(OwnDue):
    def _hide(self, record, until):
        return record


@breaks("due")
class HiddenForEver(OwnDue):
    """The record is taken off the list: a worker that dies takes the work with it."""

    def _hide(self, record, until):
        hidden = super()._hide(record, until)
        self._records[record.at] = structs.replace(hidden, due_at=None)
        return hidden


@breaks("due")
class HiddenForFiveSecondsWhateverWasAsked(OwnDue):
    def _hide(self, record, until):
        return super()._hide(record, self._clock.now() + 5.0)


@breaks("due")
class HidingKeepsTheVersion(OwnDue):
    def _hide(self, record, until):
        hidden = structs.replace(super()._hide(record, until), version=record.version)
        self._records[record.at] = hidden
        return hidden


@breaks("due")
class HidingChangesTheFence(OwnDue):
    def _hide(self, record, until):
        hidden = structs.replace(super()._hide(record, until), fence=self._number)
        self._records[record.at] = hidden
        return hidden


@breaks("due")
class HidingIsAChange(OwnDue):
    """Who asks when a record was last written hears when a worker last looked at it. Seen once some time has passed."""

    def _hide(self, record, until):
        now = self._clock.now()
        changed = now if now - record.updated_at > 5.0 else record.updated_at
        hidden = structs.replace(super()._hide(record, until), updated_at=changed)
        self._records[record.at] = hidden
        return hidden


@breaks("due")
class HandsOutWhatWasBeforeTheHiding(OwnDue):
    def _hide(self, record, until):
        super()._hide(record, until)
        return record


@breaks("due")
class OtherQueuesToo(OwnDue):
    def chooses(self, record, kind, queues, now):
        return super().chooses(record, kind, [record.queue] if queues else (), now)


@breaks("due")
class OtherKindsToo(OwnDue):
    def chooses(self, record, kind, queues, now):
        return super().chooses(record, record.at.kind, queues, now)


@breaks("due")
class NotYetDueToo(OwnDue):
    def chooses(self, record, kind, queues, now):
        return super().chooses(record, kind, queues, now + 950)


@breaks("due")
class NextIsNeverTold(OwnDue):
    def waits(self, record, kind, queues):
        return False


@breaks("due")
class NextOfOtherQueues(OwnDue):
    def waits(self, record, kind, queues):
        return record.due_at is not None


@breaks("due")
class LimitIgnoredByDue(OwnDue):
    def due(self, kind, queues, limit, hide):
        return super().due(kind, queues, 10_000, hide)


class Indexed(OwnDue):
    """Keeps an index of what is due, beside the records, and forgets to mend it."""

    def __init__(self, clock):
        super().__init__(clock)
        self._index = {}

    def order(self, record):
        return self._index[record.at].due_at

    def chooses(self, record, kind, queues, now):
        indexed = self._index.get(record.at)
        return indexed is not None and super().chooses(indexed, kind, queues, now)

    def _apply(self, write, nonce, now):
        super()._apply(write, nonce, now)
        record = self._records.get(write.at)
        if record is not None and record.due_at is not None and self.notices(write):
            self._index[write.at] = record

    def _hide(self, record, until):
        self._index.pop(record.at, None)
        hidden = super()._hide(record, until)
        self._index[record.at] = hidden
        return hidden

    def notices(self, write):
        return True


@breaks("due", "writes")
class IndexOfWhatWasDue(Indexed):
    """A record that is done or gone is still on the list."""


@breaks("due")
class IndexNotMovedByReplace(Indexed):
    def notices(self, write):
        return not isinstance(write, Replace)

    def _apply(self, write, nonce, now):
        super()._apply(write, nonce, now)
        record = self._records.get(write.at)
        if isinstance(write, Remove) or record is None or record.due_at is None:
            self._index.pop(write.at, None)


@breaks("due")
class TwoCallersOneRecord(OwnDue):
    """Looks, and hides a moment later, with no lock in between."""

    def due(self, kind, queues, limit, hide):
        now = self._clock.now()
        ripe = [r for r in list(self._records.values()) if self.chooses(r, kind, queues, now)]
        _another_thread_runs()
        hidden = [self._hide(record, now + hide) for record in sorted(ripe, key=self.order)[:limit]]
        waiting = [r.due_at for r in list(self._records.values()) if self.waits(r, kind, queues)]
        return Due(hidden, max(0.0, min(waiting) - now) if waiting else None, now)


def _another_thread_runs():
    import time

    time.sleep(0.0005)
