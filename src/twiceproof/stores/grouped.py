"""GroupedStore: an engine as a store; truth after a lost acknowledgement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..clock import Clock, Ids, jitter, system_clock
from ..errors import BadWrite, Misuse, StoreError, StoreUnavailable
from ..operations import Request
from ..records import Address, Batch, Conflict, Due, Found, Insert, Lost, Outcome, Page, Record, Replace, Write, Written
from ..threads import SerialThread, at_fork, raised_by_signal_handler
from . import group_waiter
from .base import Again, Disconnected, Engine, Finding, all_beside
from .group_commit import GroupCommitter, held_elsewhere
from .notifications import ChangeNotifier, Subscription, names_to_notify
from .user_drivers import driver_of
from .user_transaction import Join, Joins
from .validate import validate_address, validate_due, validate_scan, validate_writes

if TYPE_CHECKING:
    import asyncio

__all__ = ["GroupedStore", "Offload"]


R = TypeVar("R")


class Offload(Request[R]):
    """For scans and the like: not worth gathering, too long for an event loop."""

    __slots__ = ("_hand", "_work")

    def __init__(self, hand: SerialThread, work: Callable[[], R]) -> None:
        self._hand = hand
        self._work = work

    def block(self) -> R:
        return self._work()

    async def wait(self) -> R:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._hand.do(lambda: self._fill(loop, future))
        return await future

    def _fill(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[R]) -> None:
        try:
            answer = self._work()
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, who raises it
            _tell(loop, future, lambda error=error: future.set_exception(error))  # type: ignore[misc]
        else:
            _tell(loop, future, lambda: future.set_result(answer))


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[R], tell: Callable[[], None]) -> None:
    def unless_done() -> None:
        if not future.done():
            tell()

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
        loop.call_soon_threadsafe(unless_done)


T = TypeVar("T")

READ_LIMIT = 200
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
GRACE = 1.0  # what closing gives to those who only read


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
        self.best_effort = engine.best_effort
        self.joins: Joins | None = getattr(engine, "joins", None)  # SQL engines can write in a user's transaction
        self._reads_here = engine.reads_first
        self.bell = ChangeNotifier()
        self.heard: list[Callable[[Batch], None]] = []  # told of every batch that has landed; they must not wait
        self._clock = clock
        self._ids = ids or Ids()
        self._patience = patience
        self._hand = SerialThread("twiceproof-store")
        self._side = SerialThread("twiceproof-store-side")
        self._writes: GroupCommitter[Batch, Outcome] = GroupCommitter(
            self._commit,
            limit=engine.group_limit,
            hand=self._hand,
            sleep=clock.sleep,
            monotonic=clock.monotonic,
            patience=patience,
            apart=(lambda batch: batch.space) if engine.one_per_space else None,
            given_up=self._give_up,
            doubt=lambda batch: self._unsure.add(batch.nonce),
            instant=getattr(engine, "instant", False),
            remote=getattr(engine, "remote", False),
        )
        self._reads: GroupCommitter[Address, Found] = GroupCommitter(
            self._fetch,
            limit=READ_LIMIT,
            hand=self._side,
            sleep=clock.sleep,
            monotonic=clock.monotonic,
            patience=patience,
        )
        self._closed = False
        self._over = False  # closed, and nobody is waited for any more
        self._unsure: set[str] = set()  # nonces of batches that may have landed unheard
        # A forked child must not touch its parent's connections, locks or threads.
        at_fork(self, in_child=GroupedStore.reset_after_fork)

    @property
    def reads_first(self) -> bool:
        """While a commit is under way, joining the next one tells as much as a read, and saves it."""
        return self._reads_here and not self._writes.busy

    def read(self, at: Address) -> Request[Found]:
        validate_address(at)
        if self._closed:
            self._refuse()
        if self._reads_here:
            return _Look(self, at)
        return self._reads.ask(at)

    def look(self, at: Address) -> Found:
        """A read on the spot."""
        try:
            return self.engine.fetch((at,))[0]
        except Disconnected:
            return self._fetch([at])[0]

    def write(self, *writes: Write, also: Insert | None = None) -> Request[Outcome]:
        validate_writes(writes, self.batch_limit)
        if self._closed:
            self._refuse()
        beside = None if also is None else self._index_batch(also, writes[0].at.space)
        return self._writes.ask(Batch(writes, self._ids(), beside))

    def _index_batch(self, also: Insert, space: str) -> Batch:
        validate_writes((also,), self.batch_limit)
        if also.at.space == space:
            raise BadWrite("What is written also is of another space; give it to the write itself.")
        return Batch((also,), self._ids())

    def write_each(self, batches: Sequence[Sequence[Write]]) -> Request[Sequence[Outcome | Exception]]:
        for writes in batches:
            validate_writes(writes, self.batch_limit)
        if self._closed:
            self._refuse()
        return self._writes.ask_each([Batch(tuple(writes), self._ids()) for writes in batches])

    def read_each(self, addresses: Sequence[Address]) -> Request[Sequence[Found]]:
        for at in addresses:
            validate_address(at)
        if self._closed:
            self._refuse()
        return Offload(self._side, lambda: self._fetch(addresses) if addresses else ())

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], *, limit: int = 100) -> Request[Sequence[Record]]:
        for space in spaces:
            validate_scan(limit, kinds[0], space, None)
        if self._closed:
            self._refuse()
        return Offload(self._side, lambda: self._persist(lambda: all_beside(self.engine, spaces, kinds, limit)))

    def scan(
        self,
        kind: str,
        *,
        space: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Request[Page]:
        validate_scan(limit, kind, space, state)
        if self._closed:
            self._refuse()
        return Offload(self._side, lambda: self._persist(lambda: self.engine.scan(kind, space, state, after, limit)))

    def due(self, kind: str, *, queues: Collection[str], limit: int = 100, hide: float = 5.0) -> Request[Due]:
        validate_due(limit, hide, kind, queues)
        if self._closed:
            self._refuse()
        return Offload(self._side, lambda: self._persist(lambda: self.engine.due(kind, queues, limit, hide)))

    def pause(self, space: str, seconds: float) -> Request[None]:
        self._listen()
        return self.bell.pause(space, seconds)

    def watch(self, places: Collection[str]) -> Subscription:
        return Subscription(self.bell, places, self._listen)

    def _listen(self) -> float | None:
        listen = getattr(self.engine, "listen", None)  # an engine may hear of changes in other processes
        return None if listen is None else listen(self.bell.ring_where)

    def join(self, connection: Any) -> Join:
        """Write within the user's own transaction: lands if they commit. SQL stores only; drive what it returns."""
        if self._closed:
            self._refuse()
        if self.joins is None:
            raise Misuse("This store cannot be written to in a transaction of yours; use sqlite:/// or postgresql://.")
        return Join(self.joins, driver_of(connection), ids=self._ids, batch_limit=self.batch_limit)

    def examine(self) -> Sequence[Finding]:
        return self._persist(self.engine.examine)

    def _refuse(self) -> NoReturn:
        """An engine would open itself again, and nobody would keep its claims alive."""
        raise StoreUnavailable("This store was closed; open another: App(…).", unsure=False, closed=True)

    def close(self) -> None:
        """Commits under way are waited for until patience runs out, reads for a moment, a silent network never."""
        self._closed = True
        for gather in (self._writes, self._reads):
            gather.ensure_leader()  # a loop that closes us cannot do so itself meanwhile
        began = self._clock.monotonic()
        self._wait_while(lambda: self._writes.busy, began + self._patience)
        self._wait_while(lambda: self._reads.busy, began + GRACE)
        self._side.stop(GRACE)
        self._over = True
        self.bell.ring_all()
        self.engine.close()  # whoever still waits for an answer hears that none will come
        self._hand.stop(GRACE)

    def _wait_while(self, busy: Callable[[], bool], deadline: float) -> None:
        while busy() and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)  # a blocking caller may be at work on its own thread

    def reset_after_fork(self) -> None:
        self._hand.reset()
        self._side.reset()
        self._writes.reset()
        self._reads.reset()
        self.bell.reset()
        self._unsure.clear()
        self.engine.abandon()

    # -- commits ---------------------------------------------------------------------------------

    def _commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | Again | Exception]:
        """Land the batches; after a lost acknowledgement find out what became of them."""
        every = self._with_index_batches(batches)
        try:
            answers = self.engine.commit(every)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            answers = self._commit_again(every, error)
        if self._unsure:
            answers = [self._settle(*pair) for pair in zip(every, answers, strict=True)]
        if self.bell:
            self._ring(every, answers)
        if self.heard:
            self._tell(every, answers)
        return answers if every is batches else answers[: len(batches)]

    def _with_index_batches(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The batches, and behind them what is to be written also: an index record never lands before its record.

        What does not fit into the engine's group is committed by itself, which happens only in a crowd.
        """
        also = {batch.also.space: batch.also for batch in batches if batch.also is not None}
        if not also:
            return batches
        for batch in batches:
            also.pop(batch.space, None)  # an engine may take only one batch of a space; that one writes the same record
        beside = list(also.values())
        room = self.engine.group_limit - len(batches)
        if len(beside) > room:
            self._commit(beside[room:])
        return [*batches, *beside[:room]]

    def _tell(self, batches: Sequence[Batch], answers: Sequence[Outcome | Again | Exception]) -> None:
        for batch, answer in zip(batches, answers, strict=True):
            for hear in self.heard if type(answer) is Written else ():
                hear(batch)

    def _commit_again(self, batches: Sequence[Batch], error: Exception) -> Sequence[Outcome | Again | Exception]:
        """After a broken connection, until patience runs out. One bad batch must not harm its neighbours."""
        pauses = self._pauses()
        while isinstance(error, Disconnected):
            if error.sent:
                self._unsure.update(batch.nonce for batch in batches)
            pause = next(pauses, None)
            if pause is None:
                return [_no_answer(error, unsure=False)] * len(batches)
            self._clock.sleep(pause)
            try:
                return self.engine.commit(batches)
            except Exception as worse:
                if raised_by_signal_handler(worse):
                    raise
                error = worse
        if len(batches) == 1 or isinstance(error, StoreUnavailable):
            return [error] * len(batches)
        return [self._commit_alone(batch) for batch in batches]

    def _commit_alone(self, batch: Batch) -> Outcome | Again | Exception:
        """After a group failed as a whole. The fault may have come after it landed: look for our own nonce."""
        (answer,) = self._commit([Batch(batch.writes, batch.nonce)])  # what is written also has its own turn
        if not isinstance(answer, Conflict):
            return answer
        recognised = self._recognised(batch, answer)
        return answer if isinstance(recognised, Lost) else recognised

    def _give_up(self, batch: Batch) -> StoreUnavailable:
        unsure = batch.nonce in self._unsure
        self._unsure.discard(batch.nonce)
        return held_elsewhere(unsure=unsure)

    def _settle(self, batch: Batch, answer: Outcome | Again | Exception) -> Outcome | Again | Exception:
        """What an answer means for a batch that may have landed before, unheard."""
        if batch.nonce not in self._unsure or isinstance(answer, Again):
            return answer  # tried later, it is still unsure: another commit will remember
        self._unsure.discard(batch.nonce)
        if isinstance(answer, Exception):
            return _no_answer(answer, unsure=True)
        return self._recognised(batch, answer)

    def _recognised(self, batch: Batch, answer: Outcome) -> Outcome | Exception:
        """A fault on the way is this batch's alone: others of its group have their answers."""
        try:
            return self._recognise(batch, answer)
        except StoreError as error:
            return _no_answer(error, unsure=True)

    def _recognise(self, batch: Batch, answer: Outcome) -> Outcome:
        """A conflict on the second try may be with our own first try: its nonce tells."""
        if not isinstance(answer, Conflict):
            return answer
        marked = _marked(batch)
        for found in self._fetch(marked) if marked else ():
            if found.record is not None and found.record.nonce == batch.nonce:
                self._confirm()
                return Written(found.record.version, found.record.fence, found.now)
        return Lost(answer.at, answer.found, answer.now)

    def _confirm(self) -> None:
        """What can be seen need not be as safe yet as what is acknowledged."""
        confirm = getattr(self.engine, "confirm", None)
        if confirm is not None:
            self._persist(confirm)

    def _ring(self, batches: Sequence[Batch], answers: Sequence[Outcome | Again | Exception]) -> None:
        self.bell.ring(
            place
            for batch, answer in zip(batches, answers, strict=True)
            if type(answer) is Written
            for place in names_to_notify(batch)
        )

    # -- everything else -------------------------------------------------------------------------

    def _fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        return self._persist(lambda: self.engine.fetch(addresses))

    def _persist(self, work: Callable[[], T]) -> T:
        """Try again after a broken connection: for work that may be repeated freely."""
        pauses = self._pauses()
        while True:
            try:
                return work()
            except Disconnected as error:
                pause = next(pauses, None)
                if pause is None:
                    raise _no_answer(error, unsure=False) from None
            self._clock.sleep(pause)

    def _pauses(self) -> Iterator[float]:
        """Between two tries: growing pauses, until patience runs out or we are closed."""
        deadline = self._clock.monotonic() + self._patience
        pause = FIRST_PAUSE
        while self._clock.monotonic() < deadline and not self._over:
            yield jitter(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


class _Look(Request[Found]):
    """A read so short that even an event loop does it on the spot."""

    __slots__ = ("_at", "_store")

    def __init__(self, store: GroupedStore, at: Address) -> None:
        self._store = store
        self._at = at

    def block(self) -> Found:
        return self._store.look(self._at)

    async def wait(self) -> Found:
        found = self._store.look(self._at)
        if group_waiter.should_yield():
            await group_waiter.yield_to_loop()
        return found


def _marked(batch: Batch) -> list[Address]:
    """Where a batch leaves its nonce; if it draws, only where the fence is that it has to tell."""
    puts = [write for write in batch.writes if isinstance(write, Insert | Replace)]
    return [write.at for write in puts if write.draw] or [write.at for write in puts]


def _no_answer(cause: BaseException | None, *, unsure: bool) -> StoreUnavailable:
    # Another error's own words may say "nothing was written", which is not known here.
    why = cause.data["cause"] if isinstance(cause, StoreUnavailable) and "cause" in cause.data else cause
    why = type(why).__name__ if isinstance(why, StoreError) else str(why)
    state = "The write may or may not have landed" if unsure else "Nothing was written"
    return StoreUnavailable(
        f"The store does not answer ({why}). {state}. Check that it runs, then try again.",
        unsure=unsure,
        cause=why,
    )
