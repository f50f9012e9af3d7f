"""Turns an engine into a store: group commit, truth after a lost acknowledgement, life across a fork."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from ..clock import Clock, Ids, jitter, system_clock
from ..drive import Inline, Request
from ..errors import StoreUnavailable
from ..records import (
    Address,
    Batch,
    Check,
    Conflict,
    Due,
    Found,
    Lost,
    Outcome,
    Page,
    Remove,
    Replace,
    Write,
    Written,
)
from .base import Again, Disconnected, Engine, Finding
from .bell import Bell
from .gather import Gather
from .hand import Hand
from .offload import Offload
from .validate import validate_due, validate_scan, validate_writes

__all__ = ["GroupedStore", "is_transition"]

T = TypeVar("T")

READ_LIMIT = 200
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


class GroupedStore:
    """A store over an engine. Safe to use from threads, event loops and forked children at once."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock = system_clock,
        ids: Callable[[], str] | None = None,
        patience: float = 10.0,
    ) -> None:
        self.engine = engine
        self.batch_limit = engine.batch_limit
        self.reads_first = engine.reads_first
        self.best_effort = engine.best_effort
        self.bell = Bell()
        self._clock = clock
        self._ids = ids or Ids()
        self._patience = patience
        self._hand = Hand("twiceproof-store")
        self._side = Hand("twiceproof-store-side")
        self._writes: Gather[Batch, Outcome] = Gather(
            self._commit,
            limit=engine.group_limit,
            hand=self._hand,
            sleep=clock.sleep,
            patience=patience,
            apart=(lambda batch: batch.space) if engine.one_per_space else None,
        )
        self._reads: Gather[Address, Found] = Gather(
            self._fetch, limit=READ_LIMIT, hand=self._side, sleep=clock.sleep, patience=patience
        )
        _at_fork(self)

    def read(self, at: Address) -> Request[Found]:
        if self.reads_first:
            return Inline(lambda: self._fetch([at])[0])
        return self._reads.ask(at)

    def write(self, *writes: Write) -> Request[Outcome]:
        validate_writes(writes, self.batch_limit)
        return self._writes.ask(Batch(writes, self._ids()))

    def scan(
        self,
        kind: str,
        *,
        space: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Request[Page]:
        validate_scan(limit)
        return Offload(
            self._side, lambda: self._persist(lambda: self.engine.scan(kind, space, state, after, limit))
        )

    def due(self, kind: str, *, queues: Collection[str], limit: int = 100, hide: float = 5.0) -> Request[Due]:
        validate_due(limit, hide)
        return Offload(self._side, lambda: self._persist(lambda: self.engine.due(kind, queues, limit, hide)))

    def pause(self, space: str, seconds: float) -> Request[None]:
        return self.bell.pause(space, seconds)

    def examine(self) -> Sequence[Finding]:
        return self._persist(self.engine.examine)

    def close(self) -> None:
        self._hand.stop()
        self._side.stop()
        self.bell.ring_all()
        self.engine.close()

    def reset_after_fork(self) -> None:
        self._hand.reset()
        self._side.reset()
        self._writes.reset()
        self._reads.reset()
        self.bell.reset()
        self.engine.abandon()

    # -- commits ---------------------------------------------------------------------------------

    def _commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | Again | Exception]:
        """Land the batches; after a lost acknowledgement find out what became of them."""
        unsure = False
        last: BaseException | None = None
        for pause in self._pauses():
            if pause:
                self._clock.sleep(pause)
            try:
                answers = self.engine.commit(batches)
            except Disconnected as error:
                unsure, last = unsure or error.sent, error
                continue
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - one bad batch must not harm its neighbours
                return [error] if len(batches) == 1 else [self._commit([batch])[0] for batch in batches]
            if unsure:
                answers = [self._recognise(*pair) for pair in zip(batches, answers, strict=True)]
            self._ring(batches, answers)
            return answers
        raise _no_answer(last, unsure=unsure)

    def _recognise(self, batch: Batch, answer: Outcome | Again | Exception) -> Outcome | Again | Exception:
        """A conflict on the second try may be with our own first try: its nonce tells."""
        if not isinstance(answer, Conflict):
            return answer
        marked = [write.at for write in batch.writes if not isinstance(write, Remove | Check)]
        for found in self._fetch(marked) if marked else ():
            if found.record is not None and found.record.nonce == batch.nonce:
                return Written(found.record.version, found.record.fence, found.now)
        return Lost(answer.at, answer.found, answer.now)

    def _ring(self, batches: Sequence[Batch], answers: Sequence[Outcome | Again | Exception]) -> None:
        if self.bell:
            self.bell.ring(
                batch.space
                for batch, answer in zip(batches, answers, strict=True)
                if type(answer) is Written and is_transition(batch)
            )

    # -- everything else -------------------------------------------------------------------------

    def _fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        return self._persist(lambda: self.engine.fetch(addresses))

    def _persist(self, work: Callable[[], T]) -> T:
        """Try again after a broken connection: for work that may be repeated freely."""
        last: BaseException | None = None
        for pause in self._pauses():
            if pause:
                self._clock.sleep(pause)
            try:
                return work()
            except Disconnected as error:
                last = error
        raise _no_answer(last, unsure=False)

    def _pauses(self) -> Iterator[float]:
        """Nothing before the first try, then growing pauses, until patience runs out."""
        yield 0.0
        deadline = self._clock.monotonic() + self._patience
        pause = FIRST_PAUSE
        while self._clock.monotonic() < deadline:
            yield jitter(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


def is_transition(batch: Batch) -> bool:
    """Whether somebody may wait for this: a record changed hands or went away. Heartbeats do neither."""
    return any(
        isinstance(write, Remove) or (isinstance(write, Replace) and write.draw) for write in batch.writes
    )


def _no_answer(cause: BaseException | None, *, unsure: bool) -> StoreUnavailable:
    state = "The write may or may not have landed" if unsure else "Nothing was written"
    return StoreUnavailable(
        f"The store does not answer ({cause}). {state}. Check that it runs, then try again.", unsure=unsure
    )


def _at_fork(store: GroupedStore) -> None:
    """A forked child must not touch its parent's connections, locks or threads."""
    reference = weakref.ref(store)

    def reset() -> None:
        living = reference()
        if living is not None:
            living.reset_after_fork()

    os.register_at_fork(after_in_child=reset)
