"""Scans that skip, repeat, or meet what they should not."""

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks
from twiceproof.records import Page
from twiceproof.stores.memory import MemoryEngine


class OwnScan(MemoryEngine):
    """Pages by offset, as so many do."""

    step = 0

    def order(self, record):
        return record.at.space, record.at.key

    def scan(self, kind, space, state, after, limit, *more):
        with self._mutex:
            chosen = sorted(self._matching(kind, space, state), key=self.order)
        begin = int(after or 0)
        page = chosen[begin : begin + limit]
        end = begin + limit + self.step if limit > 1 else begin + limit
        return Page(page, str(end) if begin + limit < len(chosen) else None, self._clock.now())


@breaks("reads", "lists")
class OffsetsMoveWhenRecordsGo(OwnScan):
    """Right as long as nothing changes."""


@breaks("reads", "lists")
class ScanSkipsAtPageBorders(OwnScan):
    step = 1


@breaks("reads", "lists")
class ScanRepeatsAtPageBorders(OwnScan):
    step = -1


@breaks("reads", "lists")
class OrderedByTheLastUpdate(MemoryEngine):
    """A record that is replaced moves to the end, and is met again."""

    def scan(self, kind, space, state, after, limit, *more):
        with self._mutex:
            chosen = sorted(self._matching(kind, space, state), key=lambda record: int(record.version))
        rest = [record for record in chosen if int(record.version) > int(after or 0)]
        page = rest[:limit]
        return Page(page, page[-1].version if len(rest) > limit else None, self._clock.now())


@breaks("reads", "lists")
class PageLimitIgnored(MemoryEngine):
    def scan(self, kind, space, state, after, limit, *more):
        return super().scan(kind, space, state, after, limit + 1, *more)


@breaks("reads", "lists")
class OnlyTheFirstPage(MemoryEngine):
    def scan(self, kind, space, state, after, limit, *more):
        return structs.replace(super().scan(kind, space, state, after, limit, *more), after=None)


@breaks("reads")
class ScanIgnoresTheSpace(MemoryEngine):
    def scan(self, kind, space, state, after, limit, *more):
        return super().scan(kind, None, state, after, limit, *more)


@breaks("reads", "lists")
class ScanIgnoresTheState(MemoryEngine):
    def scan(self, kind, space, state, after, limit, *more):
        return super().scan(kind, space, None, after, limit, *more)


@breaks("reads")
class EmptyStateMeansAny(MemoryEngine):
    def scan(self, kind, space, state, after, limit, *more):
        return super().scan(kind, space, state or None, after, limit, *more)


@breaks("reads", "due", "lists")
class ScanIgnoresTheKind(MemoryEngine):
    def _matching(self, kind, space, state):
        for at, record in self._records.items():
            if space in (None, at.space) and state in (None, record.state):
                yield record


@breaks("reads", "lists")
class StateIndexNotMended(MemoryEngine):
    """A record is found by the state it was inserted with."""

    def __init__(self, clock):
        super().__init__(clock)
        self._states = {}

    def _apply(self, write, nonce, now):
        super()._apply(write, nonce, now)
        if write.at in self._records:
            self._states.setdefault(write.at, self._records[write.at].state)
        else:
            self._states.pop(write.at, None)

    def _matching(self, kind, space, state):
        for record in super()._matching(kind, space, None):
            if state in (None, self._states.get(record.at, "")):
                yield record
