"""An engine whose records' bodies are sealed on their way in and opened on their way out. All else stays as it is.

No condition of a write looks at a body, so the engine below need not know. Keys, states, queues and times are in the
clear: they are what records are found by.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from msgspec import structs

from ..drive import Operation
from ..errors import CannotOpen
from ..records import Address, Batch, Conflict, Due, Found, Insert, Lost, Outcome, Page, Record, Replace
from .base import Again, Engine, Finding, all_beside
from .join import Joins
from .joins.driver import Driver
from .keyring import Keyring

__all__ = ["SealedEngine"]

log = logging.getLogger("twiceproof")

SHARED = "~"  # how the spaces begin that are no tenant's own


class SealedEngine:
    """Wraps an engine."""

    def __init__(self, inner: Engine, keyring: Keyring) -> None:
        self.inner = inner
        self.keyring = keyring
        self.batch_limit = inner.batch_limit
        self.group_limit = inner.group_limit
        self.reads_first = inner.reads_first
        self.best_effort = inner.best_effort
        self.one_per_space = inner.one_per_space
        self.instant = getattr(inner, "instant", False)
        self.remote = getattr(inner, "remote", False)
        joins: Joins | None = getattr(inner, "joins", None)
        self.joins = None if joins is None else SealedJoins(joins, self)

    def __getattr__(self, name: str) -> Any:
        """What only some engines have, such as `listen`."""
        return getattr(self.inner, name)

    # -- in --------------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | Again | Exception]:
        answers = self.inner.commit([self.sealed(batch) for batch in batches])
        return [self._opened_answer(answer) for answer in answers]

    def sealed(self, batch: Batch) -> Batch:
        writes = [self._sealed_write(write) for write in batch.writes]
        return Batch(writes, batch.nonce)

    def _sealed_write(self, write: Any) -> Any:
        if not isinstance(write, Insert | Replace) or write.body is None:
            return write
        return structs.replace(write, body=self.keyring.seal(write.at, write.body))

    # -- out -------------------------------------------------------------------------------------

    def _opened_answer(self, answer: Outcome | Again | Exception) -> Outcome | Again | Exception:
        try:
            return self.opened_outcome(answer) if isinstance(answer, Conflict | Lost) else answer
        except CannotOpen as error:
            return error  # of this batch alone: its neighbours have answers of their own

    def opened_outcome(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Conflict | Lost) or outcome.found is None:
            return outcome
        return structs.replace(outcome, found=self._opened(outcome.found))

    def _opened(self, record: Record) -> Record:
        return structs.replace(record, body=self.keyring.open(record.at, record.body))

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        found = self.inner.fetch(addresses)
        return [one if one.record is None else structs.replace(one, record=self._opened(one.record)) for one in found]

    def scan(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> Page:
        """What one space holds belongs together: what a ledger lacks a step of would be done again. Elsewhere,
        in lists and in what all tenants share, one bad row is left out: it must not keep a token from being revoked.
        """
        page = self.inner.scan(kind, space, state, after, limit)
        if space is None or space.startswith(SHARED):
            return structs.replace(page, records=list(self._sound(page.records)))
        return structs.replace(page, records=[self._opened(record) for record in page.records])

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
        return [self._opened(record) for record in all_beside(self.inner, spaces, kinds, limit)]

    def _sound(self, records: Sequence[Record]) -> Iterator[Record]:
        """Where it is a key that is wanting, or nothing opens at all, that is said instead."""
        bad: CannotOpen | None = None
        left = len(records)
        for record in records:
            try:
                yield self._opened(record)
            except CannotOpen as error:
                bad, left = error, left - 1
                if self.keyring.misses(error):
                    raise
                log.error("left out: %s", error)
        if bad is not None and not left:
            raise bad

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        due = self.inner.due(kind, queues, limit, hide)
        return structs.replace(due, records=list(self._readable(due.records)))

    def _readable(self, records: Iterable[Record]) -> Iterator[Record]:
        """One that does not open is left out and said so, each time it comes round: the others must not wait for it."""
        for record in records:
            try:
                yield self._opened(record)
            except CannotOpen as error:
                log.error("left lying: %s", error)

    # -- life ------------------------------------------------------------------------------------

    def examine(self) -> Sequence[Finding]:
        keys = f"stored values are sealed with the key {self.keyring.current!r}"
        others = self.keyring.ids[1:]
        advice = f"Opens also {', '.join(others)}; rewrite what is left with: twiceproof keys rotate" if others else ""
        if not self.keyring.plain:
            keys += ", and nothing else is believed"
        return [*self.inner.examine(), Finding("ok", "sealing", keys, advice)]

    def close(self) -> None:
        self.inner.close()

    def abandon(self) -> None:
        self.inner.abandon()


class SealedJoins:
    """The ledger in a user's own transaction, sealed as everywhere."""

    def __init__(self, inner: Joins, engine: SealedEngine) -> None:
        self._inner = inner
        self._engine = engine
        self.dialect = inner.dialect

    def connect(self, *, awaited: bool) -> Any:
        return self._inner.connect(awaited=awaited)

    def lock(self, driver: Driver) -> Operation[None]:
        return self._inner.lock(driver)

    def check(self, driver: Driver, mark: str) -> Operation[str]:
        return self._inner.check(driver, mark)

    def land(self, driver: Driver, mark: str, batch: Batch) -> Operation[Outcome]:
        outcome = yield from self._inner.land(driver, mark, self._engine.sealed(batch))
        return self._engine.opened_outcome(outcome)

    def loosen(self, driver: Driver) -> None:
        self._inner.loosen(driver)

    def end(self, session: str) -> None:
        self._inner.end(session)

    def explain(self, error: BaseException) -> BaseException:
        return self._inner.explain(error)
