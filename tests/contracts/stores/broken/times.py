"""Times of the wrong clock, from the wrong moment, or with consequences they must not have."""

import time

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks, breaks_above
from twiceproof.clock import Clock
from twiceproof.records import Batch, Replace
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


@breaks("fences", "due", "writes")
class TimeOfTheCaller(MemoryEngine):
    """Stamps with the clock of the machine that calls."""

    def __init__(self, clock):
        super().__init__(Clock(now=time.time))


@breaks_above("fences")
class LeaseBornDead(GroupedStore):
    """Stamps when it is asked, and waits for its turn afterwards."""

    def write(self, *writes, **more):
        asked = self._clock.now()
        request = super().write(*writes, **more)
        engine, commit = self.engine, self.engine.commit

        def stamped_early(batches):
            delay = self._clock.now() - asked
            return commit([_earlier(batch, delay) for batch in batches])

        block = request.block

        class Early(type(request)):
            __slots__ = ()

            def block(self):
                engine.commit = stamped_early
                try:
                    return block()
                finally:
                    engine.commit = commit

        return Early(request._committer, request.item)


def _earlier(batch, delay):
    """The batch as if its seconds had begun to run when it was asked."""
    if delay < 1:
        return batch
    writes = [
        structs.replace(write, lease=write.lease - delay) if getattr(write, "lease", None) else write
        for write in batch.writes
    ]
    return Batch(writes, batch.nonce)


@breaks("writes")
class CreatedAtOverwritten(MemoryEngine):
    def _apply(self, write, nonce, now):
        super()._apply(write, nonce, now)
        if isinstance(write, Replace):
            self._records[write.at] = structs.replace(self._records[write.at], created_at=now)


@breaks("writes")
class UpdatedAtStandsStill(MemoryEngine):
    def _apply(self, write, nonce, now):
        old = self._records.get(write.at)
        super()._apply(write, nonce, now)
        if isinstance(write, Replace) and old is not None:
            self._records[write.at] = structs.replace(self._records[write.at], updated_at=old.updated_at)


@breaks("fences")
class RenewalCountsFromTheOldLease(MemoryEngine):
    def _apply(self, write, nonce, now):
        old = self._records.get(write.at)
        super()._apply(write, nonce, now)
        if isinstance(write, Replace) and write.lease and old is not None and old.lease_until:
            lease_until = old.lease_until + write.lease
            self._records[write.at] = structs.replace(self._records[write.at], lease_until=lease_until)


@breaks("writes", "due")
class NotGivenIsKept(MemoryEngine):
    """A patch, where a replacement was asked for."""

    def _apply(self, write, nonce, now):
        old = self._records.get(write.at)
        super()._apply(write, nonce, now)
        if isinstance(write, Replace) and old is not None:
            new = self._records[write.at]
            self._records[write.at] = structs.replace(
                new,
                lease_until=new.lease_until or old.lease_until,
                queue=new.queue or old.queue,
                due_at=new.due_at or old.due_at,
                state=new.state or old.state,
            )


@breaks("fences")
class ExpiryDeletes(MemoryEngine):
    """A time to live on the record: when the lease ends, the record is gone, and the work happens again."""

    def fetch(self, addresses):
        self._expire()
        return super().fetch(addresses)

    def commit(self, batches):
        self._expire()
        return super().commit(batches)

    def _expire(self):
        with self._mutex:
            now = self._clock.now()
            gone = [r.at for r in self._records.values() if r.lease_until and r.lease_until + 60 < now]
            for at in gone:
                del self._records[at]


@breaks("fences", "writes")
class WholeSeconds(MemoryEngine):
    """A column type without fractions."""

    def _apply(self, write, nonce, now):
        super()._apply(write, nonce, float(int(now)))
