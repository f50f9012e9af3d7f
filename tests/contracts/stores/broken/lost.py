"""Lost acknowledgements taken for something they are not."""

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks, breaks_above
from twiceproof.records import Conflict, Lost, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


@breaks_above("concurrency", "batches")
class LostAnswerSeenAsConflict(GroupedStore):
    """The commonest mistake: one's own write is taken for somebody else's."""

    def _recognise_lost_acknowledgement(self, batch, answer):
        return answer


@breaks_above("concurrency")
class LostAnswerSeenAsSuccess(GroupedStore):
    def _recognise_lost_acknowledgement(self, batch, answer):
        if isinstance(answer, Conflict):
            return Written(answer.found.version if answer.found else "1", 1, answer.now)
        return answer


@breaks_above("concurrency", "batches")
class LostAnswerAlwaysLost(GroupedStore):
    """Never looks for its own nonce."""

    def _recognise_lost_acknowledgement(self, batch, answer):
        return Lost(answer.at, answer.found, answer.now) if isinstance(answer, Conflict) else answer


@breaks_above("concurrency")
class WhatIsNotRecognisedIsAConflict(GroupedStore):
    def _recognise_lost_acknowledgement(self, batch, answer):
        outcome = super()._recognise_lost_acknowledgement(batch, answer)
        return Conflict(outcome.at, outcome.found, outcome.now) if isinstance(outcome, Lost) else outcome


@breaks_above("concurrency", "batches")
class NeverSentIsLost(GroupedStore):
    """Cries wolf: a write that was never sent is called lost."""

    def _commit(self, batches):
        self._unacknowledged.update(batch.nonce for batch in batches if hasattr(self.engine, "inner"))
        return super()._commit(batches)


@breaks_above("concurrency")
class RecognisedWithoutItsFence(GroupedStore):
    def _recognise_lost_acknowledgement(self, batch, answer):
        outcome = super()._recognise_lost_acknowledgement(batch, answer)
        recognised = isinstance(answer, Conflict) and isinstance(outcome, Written)
        return structs.replace(outcome, fence=0) if recognised else outcome


@breaks("concurrency", "writes", "lifecycle", "batches")
class NonceNotKept(MemoryEngine):
    def _apply(self, write, nonce, now):
        super()._apply(write, "", now)
