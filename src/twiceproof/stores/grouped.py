"""GroupedStore: makes a store of an engine: group commit, retries, and the outcome after a lost acknowledgement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from ..clock import Clock, Ids, jitter, system_clock
from ..errors import BadWrite, Misuse, StoreError, StoreUnavailable
from ..operations import Offload, Request
from ..records import Address, Batch, Conflict, Due, Found, Insert, Lost, Outcome, Page, Record, Replace, Write, Written
from ..threads import SerialThread, at_fork, raised_by_signal_handler
from .base import Disconnected, Engine, Finding, SpaceBusy, all_beside
from .group_commit import GroupCommitter
from .notifications import ChangeNotifier, Subscription, names_to_notify
from .user_drivers import driver_of
from .user_transaction import Join, Joins
from .validate import (
    MOST_BODY,
    validate_address,
    validate_bodies,
    validate_due,
    validate_order,
    validate_scan,
    validate_writes,
)
from .waiting import CommitEach, held_elsewhere, should_yield, yield_to_loop

__all__ = ["GroupedStore"]


T = TypeVar("T")
CommitAnswer = Outcome | SpaceBusy | Exception

READ_LIMIT = 200
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
GRACE = 1.0  # seconds that closing waits for reads


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
        self.body_limit: int = getattr(engine, "body_limit", MOST_BODY)
        self.best_effort = engine.best_effort
        self.newest_first = engine.newest_first
        self.links_spaces: bool = getattr(engine, "links_spaces", False)
        self.lease_margin: float = getattr(engine, "lease_margin", 0.0)
        self.joins: Joins | None = getattr(engine, "joins", None)  # SQL engines can write in a user's transaction
        self._reads_here = engine.reads_first
        self.changes = ChangeNotifier()
        self.on_commit: list[Callable[[Batch], None]] = []  # called with every committed batch; they must not wait
        self._clock = clock
        self._ids = ids or Ids()
        self._patience = patience
        self._thread = SerialThread("twiceproof-store")
        self._side = SerialThread("twiceproof-store-side")
        self._writes: GroupCommitter[Batch, Outcome] = GroupCommitter(
            self._commit,
            limit=engine.group_limit,
            thread=self._thread,
            sleep=clock.sleep,
            monotonic=clock.monotonic,
            patience=patience,
            separate_by=(lambda batch: batch.spaces) if engine.one_per_space else None,
            on_give_up=self._give_up,
            on_retry=lambda batch: self._unacknowledged.add(batch.nonce),
            instant=getattr(engine, "instant", False),
            remote=getattr(engine, "remote", False),
        )
        self._reads: GroupCommitter[Address, Found] = GroupCommitter(
            self._fetch,
            limit=READ_LIMIT,
            thread=self._side,
            sleep=clock.sleep,
            monotonic=clock.monotonic,
            patience=patience,
        )
        self._closed = False
        self._over = False  # closed, and callers are not waited for any more
        self._unacknowledged: set[str] = set()  # nonces of batches that may have landed without an acknowledgement
        # A forked child must not touch its parent's connections, locks or threads.
        at_fork(self, in_child=GroupedStore.reset_after_fork)

    @property
    def reads_first(self) -> bool:
        """While a commit is under way, joining the next one says as much as a read, and saves the read."""
        return self._reads_here and not self._writes.busy

    def read(self, at: Address) -> Request[Found]:
        validate_address(at)
        if self._closed:
            self._refuse()
        if self._reads_here:
            return _LocalRead(self, at)
        return self._reads.request(at)

    def look(self, at: Address) -> Found:
        """Read without waiting for other callers."""
        try:
            return self.engine.fetch((at,))[0]
        except Disconnected:
            return self._fetch([at])[0]

    def write(self, *writes: Write, also: Insert | None = None, linked: Sequence[Write] = ()) -> Request[Outcome]:
        self._validate(writes)
        others = self._validate_linked(writes, linked) if linked else ()
        if self._closed:
            self._refuse()
        beside = None if also is None else self._index_batch(also, writes[0].at.space)
        return self._writes.request(Batch((*writes, *linked), self._ids(), beside, others))

    def _validate_linked(self, writes: Sequence[Write], linked: Sequence[Write]) -> tuple[str, ...]:
        """Return the spaces of `linked`, in their order."""
        if not self.links_spaces:
            raise BadWrite("This store lands writes to one space together; write to each space on its own.")
        by_space: dict[str, list[Write]] = {}
        for write in linked:
            by_space.setdefault(write.at.space, []).append(write)
        if writes[0].at.space in by_space or [write for part in by_space.values() for write in part] != list(linked):
            raise BadWrite("Linked writes are to other spaces than the first ones, those of each space together.")
        if len(writes) + len(linked) > self.batch_limit:
            raise BadWrite(f"This store lands {self.batch_limit} writes together; split them.")
        for part in by_space.values():
            self._validate(part)
        return tuple(by_space)

    def _validate(self, writes: Sequence[Write]) -> None:
        validate_writes(writes, self.batch_limit)
        if self.body_limit < MOST_BODY:
            validate_bodies(writes, self.body_limit)

    def _index_batch(self, also: Insert, space: str) -> Batch:
        self._validate((also,))
        if also.at.space == space:
            raise BadWrite("`also` is of the same space as the write; pass it as one of the writes instead.")
        return Batch((also,), self._ids())

    def write_each(
        self, batches: Sequence[Sequence[Write]], *, patience: float | None = None
    ) -> Request[Sequence[Outcome | Exception]]:
        for writes in batches:
            self._validate(writes)
        if self._closed:
            self._refuse()
        commits = [self._writes.request(Batch(tuple(writes), self._ids())) for writes in batches]
        if patience is not None:
            for pending in commits:
                pending.until = self._clock.monotonic() + patience
        return CommitEach(commits)

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
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Request[Page]:
        validate_scan(limit, kind, space, state)
        validate_order(kind, space, newest, prefix)
        if self._closed:
            self._refuse()
        asked = (kind, space, state, after, limit, newest, prefix)
        return Offload(self._side, lambda: self._persist(lambda: self.engine.scan(*asked)))

    def due(self, kind: str, *, queues: Collection[str], limit: int = 100, hide: float = 5.0) -> Request[Due]:
        validate_due(limit, hide, kind, queues)
        if self._closed:
            self._refuse()
        return Offload(self._side, lambda: self._persist(lambda: self.engine.due(kind, queues, limit, hide)))

    def pause(self, space: str, seconds: float) -> Request[None]:
        self._listen()
        return self.changes.pause(space, seconds)

    def watch(self, places: Collection[str]) -> Subscription:
        return Subscription(self.changes, places, self._listen)

    def _listen(self) -> float | None:
        listen = getattr(self.engine, "listen", None)  # an engine may be notified of changes in other processes
        return None if listen is None else listen(self.changes.notify_matching)

    def notify(self, names: Collection[str]) -> None:
        """Wake those who wait for these names, here and in other processes: something may have changed there."""
        self.changes.notify(names)
        tell = getattr(self.engine, "tell", None)  # an engine that notifies other processes of its own commits
        if tell is not None:
            tell(names)

    def join(self, connection: Any) -> Join:
        """Write within the user's own transaction: it lands if they commit. SQL stores only; drive what it returns."""
        if self._closed:
            self._refuse()
        if self.joins is None:
            raise Misuse(
                "This store cannot be written to in a transaction of yours; use sqlite:///, postgresql:// or mariadb://."
            )
        return Join(self.joins, driver_of(connection), ids=self._ids, batch_limit=self.batch_limit)

    def examine(self) -> Sequence[Finding]:
        return self._persist(self.engine.examine)

    def _refuse(self) -> NoReturn:
        """An engine would connect again, but no heartbeat would keep its claims alive."""
        raise StoreUnavailable("This store was closed; open another: App(…).", unsure=False, closed=True)

    def close(self) -> None:
        """Wait for commits under way until patience runs out, for reads at most `GRACE`, never for a silent network."""
        self._closed = True
        for committer in (self._writes, self._reads):
            committer.ensure_leader()  # an event loop that is closing the store cannot do so itself meanwhile
        began = self._clock.monotonic()
        self._wait_while(lambda: self._writes.busy, began + self._patience)
        self._wait_while(lambda: self._reads.busy, began + GRACE)
        self._side.stop(GRACE)
        self._over = True
        self.changes.notify_all()
        self.engine.close()  # callers that still wait get an error
        self._thread.stop(GRACE)

    def _wait_while(self, busy: Callable[[], bool], deadline: float) -> None:
        while busy() and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)  # a blocking caller may be committing on its own thread

    def reset_after_fork(self) -> None:
        self._thread.reset()
        self._side.reset()
        self._writes.reset()
        self._reads.reset()
        self.changes.reset()
        self._unacknowledged.clear()
        self.engine.abandon()

    # -- commits ---------------------------------------------------------------------------------

    def _commit(self, batches: Sequence[Batch]) -> Sequence[CommitAnswer]:
        """Commit the batches; after a lost acknowledgement find out whether they landed."""
        every = self._with_index_batches(batches)
        try:
            answers = self.engine.commit(every)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            answers = self._commit_again(every, error)
        if self._unacknowledged:
            answers = [self._outcome_after_retry(*pair) for pair in zip(every, answers, strict=True)]
        if self.changes.waiters:
            self._notify(every, answers)
        if self.on_commit:
            self._call_back(every, answers)
        return answers if every is batches else answers[: len(batches)]

    def _with_index_batches(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """Return the batches, followed by those of `also`: an index record never lands before its record.

        Those that do not fit into the engine's group are committed separately, which only happens under high load.
        """
        also = {batch.also.space: batch.also for batch in batches if batch.also is not None}
        if not also:
            return batches
        for batch in batches:
            for space in batch.spaces:
                also.pop(space, None)  # an engine may accept one batch per space; that one writes the same record
        beside = list(also.values())
        room = self.engine.group_limit - len(batches)
        if len(beside) > room:
            self._commit(beside[room:])
        return [*batches, *beside[:room]]

    def _call_back(self, batches: Sequence[Batch], answers: Sequence[CommitAnswer]) -> None:
        for batch, answer in zip(batches, answers, strict=True):
            for callback in self.on_commit if type(answer) is Written else ():
                callback(batch)

    def _commit_again(self, batches: Sequence[Batch], error: Exception) -> Sequence[CommitAnswer]:
        """Retry after a broken connection, until patience runs out. One bad batch must not fail its neighbours."""
        answers: dict[str, CommitAnswer] = {}
        pauses, left = self._pauses(), batches
        while isinstance(error, Disconnected):
            told = zip(left, error.answers, strict=False)
            answers |= {batch.nonce: answer for batch, answer in told if answer is not None}
            left = [batch for batch in left if batch.nonce not in answers]
            if error.sent:
                self._unacknowledged.update(batch.nonce for batch in left)
            pause = next(pauses, None)
            if pause is None:
                found: Sequence[CommitAnswer] = [unavailable(error, unsure=False)] * len(left)
                break
            self._clock.sleep(pause)
            try:
                found = self.engine.commit(left)
                break
            except Exception as worse:
                if raised_by_signal_handler(worse):
                    raise
                error = worse
        else:
            found = self._failed(left, error)
        answers |= {batch.nonce: answer for batch, answer in zip(left, found, strict=True)}
        return [answers[batch.nonce] for batch in batches]

    def _failed(self, batches: Sequence[Batch], error: Exception) -> Sequence[CommitAnswer]:
        if len(batches) == 1 or isinstance(error, StoreUnavailable):
            return [error] * len(batches)
        return [self._commit_separately(batch) for batch in batches]

    def _commit_separately(self, batch: Batch) -> CommitAnswer:
        """After a group failed as a whole. It may have landed before the error: look for the batch's own nonce."""
        alone = Batch(batch.writes, batch.nonce, others=batch.others)  # its `also` is in the list by itself
        (answer,) = self._commit([alone])
        if not isinstance(answer, Conflict):
            return answer
        recognised = self._recognised_or_error(batch, answer)
        return answer if isinstance(recognised, Lost) else recognised

    def _give_up(self, batch: Batch) -> StoreUnavailable:
        unsure = batch.nonce in self._unacknowledged
        self._unacknowledged.discard(batch.nonce)
        return held_elsewhere(unsure=unsure)

    def _outcome_after_retry(self, batch: Batch, answer: CommitAnswer) -> CommitAnswer:
        """What an answer means for a batch that may have landed before, without an acknowledgement."""
        if batch.nonce not in self._unacknowledged or isinstance(answer, SpaceBusy):
            return answer  # it is tried again later, and is still unsure then
        self._unacknowledged.discard(batch.nonce)
        if isinstance(answer, Exception):
            return unavailable(answer, unsure=True)
        return self._recognised_or_error(batch, answer)

    def _recognised_or_error(self, batch: Batch, answer: Outcome) -> Outcome | Exception:
        """An error on the way concerns this batch alone: others of its group have their answers."""
        try:
            return self._recognise_lost_acknowledgement(batch, answer)
        except StoreError as error:
            return unavailable(error, unsure=True)

    def _recognise_lost_acknowledgement(self, batch: Batch, answer: Outcome) -> Outcome:
        """A conflict on the second try may be with our own first try: the nonce shows it."""
        if not isinstance(answer, Conflict):
            return answer
        marked = _addresses_with_nonce(batch)
        for found in self._fetch(marked) if marked else ():
            if found.record is not None and found.record.nonce == batch.nonce:
                self._confirm()
                return Written(found.record.version, found.record.fence, found.now)
        return Lost(answer.at, answer.found, answer.now)

    def _confirm(self) -> None:
        """A record that can be read need not be as durable yet as an acknowledged one."""
        confirm = getattr(self.engine, "confirm", None)
        if confirm is not None:
            self._persist(confirm)

    def _notify(self, batches: Sequence[Batch], answers: Sequence[CommitAnswer]) -> None:
        self.changes.notify(
            name
            for batch, answer in zip(batches, answers, strict=True)
            if type(answer) is Written
            for name in names_to_notify(batch)
        )

    # -- everything else -------------------------------------------------------------------------

    def _fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        return self._persist(lambda: self.engine.fetch(addresses))

    def _persist(self, work: Callable[[], T]) -> T:
        """Retry after a broken connection: for work that may be repeated freely."""
        pauses = self._pauses()
        while True:
            try:
                return work()
            except Disconnected as error:
                pause = next(pauses, None)
                if pause is None:
                    raise unavailable(error, unsure=False) from None
            self._clock.sleep(pause)

    def _pauses(self) -> Iterator[float]:
        """Growing pauses between two tries, until patience runs out or the store is closed."""
        deadline = self._clock.monotonic() + self._patience
        pause = FIRST_PAUSE
        while self._clock.monotonic() < deadline and not self._over:
            yield jitter(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


class _LocalRead(Request[Found]):
    """A read so short that even an event loop does it itself."""

    __slots__ = ("_at", "_store")

    def __init__(self, store: GroupedStore, at: Address) -> None:
        self._store = store
        self._at = at

    def block(self) -> Found:
        return self._store.look(self._at)

    async def wait(self) -> Found:
        found = self._store.look(self._at)
        if should_yield():
            await yield_to_loop()
        return found


def _addresses_with_nonce(batch: Batch) -> list[Address]:
    """Where a batch leaves its nonce; if it draws a fence, only where that fence is."""
    puts = [write for write in batch.writes if isinstance(write, Insert | Replace)]
    return [write.at for write in puts if write.draw] or [write.at for write in puts]


def unavailable(cause: BaseException | None, *, unsure: bool) -> StoreUnavailable:
    # Another error's text may say "nothing was written", which is not known here.
    why = cause.data["cause"] if isinstance(cause, StoreUnavailable) and "cause" in cause.data else cause
    why = type(why).__name__ if isinstance(why, StoreError) else str(why)
    state = "The write may or may not have landed" if unsure else "Nothing was written"
    return StoreUnavailable(
        f"The store does not answer ({why}). {state}. Check that it runs, then try again.",
        unsure=unsure,
        cause=why,
    )
