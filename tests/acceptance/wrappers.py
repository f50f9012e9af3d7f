"""Engines that die or misbehave on order. They wrap the real ones: nothing in the product knows of them."""

from __future__ import annotations

from msgspec import structs

from tests.acceptance.children import die
from twiceproof.records import Check, Replace


class Wrapped:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Dying(Wrapped):
    """Kills its process before or after the n-th commit."""

    def __init__(self, inner, nth: int, *, after: bool):
        super().__init__(inner)
        self._left = nth
        self._after = after

    def commit(self, batches):
        self._left -= 1
        if self._left == 0 and not self._after:
            die()
        answers = self.inner.commit(batches)
        if self._left == 0:
            die()
        return answers


class FenceBlind(Wrapped):
    """The protection taken away: whatever fence a holder shows, it is taken for the right one."""

    def commit(self, batches):
        return self.inner.commit([structs.replace(batch, writes=self._waved_through(batch)) for batch in batches])

    def _waved_through(self, batch):
        return [self._blind(write) if isinstance(write, Replace) and write.fence else write for write in batch.writes]

    def _blind(self, write):
        found = self.inner.fetch([write.at])[0].record
        return structs.replace(write, fence=None, version=found.version) if found else write


class LedgerBlind(FenceBlind):
    """The protection taken away: a run's entries land whoever holds the run."""

    def _waved_through(self, batch):
        return [self._seen(write) for write in super()._waved_through(batch)]

    def _seen(self, write):
        return self._blind(write) if isinstance(write, Check) and write.fence else write
