"""Worker: fetches what is due, runs it, and drains. RunExecutor: its threads and its event loop.

Any number of workers, on any number of machines, share one store and nothing else. What one was handed is hidden from
the others for a few seconds, and taken conditional on its version, so only one can have it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from msgspec import structs

from ...claims.claim import parse_space, short_id
from ...claims.results import SPILL_LIMIT
from ...errors import CannotOpen, ClaimLost, Misuse, StoreError, StoreUnavailable
from ...loop_thread import LoopThread
from ...operations import Operation, await_, block
from ...records import Record
from ...stores.notifications import SOON, queue_channel
from ...threads import SerialThread, start_thread
from ..runtime import Runtime, postpone
from .due_work import DueWork
from .log import About, about_var
from .presence import Presence
from .store_clock import StoreClock

__all__ = ["Companion", "InterruptibleCall", "RunExecutor", "Worker"]


R = TypeVar("R")

log = logging.getLogger("twiceproof.work")

HIDE = 5.0  # seconds after which a record that was handed out and not taken is due again
AHEAD = 0.1  # fetch what can begin within so many seconds: more would wait here while other workers are idle
MOST = 500  # records per fetch
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds, while other workers hold what is due
FIRST_RETRY, LONGEST_RETRY = 1.0, 30.0  # seconds, while the store is unavailable


class Companion(Protocol):
    """What runs beside a worker, on threads of its own, and ends with it: a relay of messages, readers of queues."""

    def start(self) -> None: ...

    def drain(self) -> None: ...

    def join(self, patience: float) -> int:
        """Wait for what is under way. Return how much has not ended."""

    def run(self, *, until_idle: bool = False) -> int:
        """Carry out what is due."""

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """What it has done, by target and outcome."""


class Worker:
    """One thread fetches due records, and an executor carries them out."""

    def __init__(
        self,
        runtime: Runtime,
        due_work: Sequence[DueWork],
        *,
        concurrency: int = 10,
        flows: Collection[str] = (),
        presence: Callable[[], Presence] | None = None,
        beside: Sequence[Companion] = (),
    ) -> None:
        if concurrency < 1:
            raise Misuse(f"A worker with {concurrency} places does nothing; give it one or more.")
        self.runtime = runtime
        self.begun = 0
        self._due_work = due_work
        self._flows = frozenset(flows)  # empty: all that are declared
        self._make_presence = presence
        self.beside = beside
        self._concurrency = concurrency
        self._watch = runtime.store.watch(())
        self._watched: list[list[str]] = []
        self._asked: list[frozenset[str]] = []  # the same: a store recognises a set that it has seen
        self._executor = RunExecutor(concurrency, self._watch.wake)
        self._fetch: InterruptibleCall[tuple[int, float | None]] = InterruptibleCall()
        self._store_clock = StoreClock(runtime.store, runtime.clock)
        self._backlog: deque[tuple[float, DueWork, Record]] = deque()  # until when a record is hidden, and the record
        self._pace = 1.0  # seconds that a run takes, a moving average
        self._turn = 0
        self._pause = FIRST_PAUSE
        self._retry = FIRST_RETRY
        self._idle = False
        self._has_fetched = False
        self.draining = False
        self._stopping = False

    @property
    def taken(self) -> int:
        """How many runs are under way."""
        return self._executor.taken

    def relayed(self) -> Mapping[str, Mapping[str, int]]:
        """How many messages were published, refused and parked beside this worker, by target."""
        return {target: counts for companion in self.beside for target, counts in companion.counts().items()}

    # -- from other threads and signal handlers --------------------------------------------------

    def wake(self) -> None:
        """Fetch again now."""
        self._watch.wake()

    def drain(self) -> None:
        """Take nothing new. Steps under way may end; their runs are handed back before the next step."""
        self.draining = self.runtime.draining = True
        for companion in self.beside:
            companion.drain()
        self._fetch.abort()
        self._watch.wake()

    def stop(self) -> None:
        """Stop at once. Runs under way are taken over by others when their leases lapse."""
        self._stopping = True
        self.drain()

    # -- serving ---------------------------------------------------------------------------------

    def run(self, *, until_idle: bool = False, patience: float = 30.0) -> int:
        """Serve until told to drain, or until nothing is due or running. Return how many runs were left unfinished."""
        presence = self._make_presence() if self._make_presence is not None and not until_idle else None
        try:
            self._check()
            if not until_idle:
                self._log_largest_result()
            if presence is not None:
                presence.start()
            for companion in () if until_idle else self.beside:
                companion.start()
            while not self.draining:
                pause = self._round()
                if until_idle and self._idle:
                    break
                if pause > 0:
                    self._watch.wait(pause)
            for companion in self.beside if until_idle and not self.draining else ():
                companion.run(until_idle=True)
            return self._drain(patience)
        finally:
            self._end_companions(patience)
            if presence is not None:
                presence.leave()
            self._fetch.close()
            self._watch.close()
            self._executor.close()

    def _end_companions(self, patience: float) -> None:
        for companion in self.beside:
            companion.drain()
        until = self.runtime.clock.monotonic() + patience
        for companion in self.beside:
            companion.join(max(0.0, until - self.runtime.clock.monotonic()))

    def _check(self) -> None:
        """Check the store's clock, and let each kind of work prepare.

        Called before a worker begins, from time to time, and after the store's clock was set.
        """
        block(self._store_clock.check())
        for work in self._due_work:
            block(work.prepare())

    def _log_largest_result(self) -> None:
        """Log what becomes of large results, before any step runs: a step cannot know how large its own will be."""
        if self.runtime.claims.blobs is None and any(work.queues() for work in self._due_work):
            most = min(SPILL_LIMIT, self.runtime.store.body_limit)
            log.info(
                "no place for large values (resources=…): a step's result of more than %s bytes is not kept, and its "
                "run waits for a person",
                f"{most:,}",
            )

    def _round(self) -> float:
        """Fill the free places. Return in how many seconds to fetch again."""
        self._idle = False
        self._begin()
        if self._backlog or not self._executor.free:
            return SOON  # a place that becomes free wakes this thread
        calm = not self._executor.taken  # before the fetch: a run that ends after it may have made another one due
        limit = min(MOST, self._executor.free + int(self._concurrency * AHEAD / self._pace))
        try:
            seen = self._fetch.call(lambda: self._fetch_due(limit), lambda: self.draining)
        except Exception as error:
            if not _closed(error):
                return self._store_unavailable(error)  # a worker outlives an outage of its store
            if not self._has_fetched:
                raise
            log.warning("the app was closed, so its worker ends: %s", error)
            self.drain()
            return 0.0
        if seen is None:  # told to drain: what was handed out is due again when it is no longer hidden
            return 0.0
        self._has_fetched = True
        found, next_in = seen
        self._retry = FIRST_RETRY
        self._begin()
        self._idle = calm and not found and (next_in is None or next_in > 0)
        if found:
            self._pause = FIRST_PAUSE
        return self._time_to_next(found, limit, next_in)

    def _fetch_due(self, limit: int) -> tuple[int, float | None]:
        """Return how many records were found, and in how many seconds there will be more."""
        self._watch_queues()
        self._turn += 1
        found, next_in = 0, None
        for work, queues in self._in_order():
            if not queues or found >= limit or self.draining:
                continue
            until = self.runtime.clock.monotonic() + HIDE
            due = self.runtime.store.due(work.kind, queues=queues, limit=limit - found, hide=HIDE).block()
            self._store_clock.observe(due.now)
            self._backlog.extend((until, work, record) for record in due.records)
            found += len(due.records)
            if due.next_in is not None:
                next_in = due.next_in if next_in is None else min(next_in, due.next_in)
        if self._store_clock.is_due:  # after the fetch, which tells the store's time
            self._check()
        return found, next_in

    def _watch_queues(self) -> None:
        """Subscribe to the queues; the subscription changes only if they have changed."""
        queues = [self._queues(work) for work in self._due_work]
        if queues != self._watched:
            self._watched = [list(each) for each in queues]
            self._asked = [frozenset(each) for each in queues]
            self._watch.move(queue_channel(queue) for each in queues for queue in each)

    def _queues(self, work: DueWork) -> list[str]:
        queues = work.queues()
        return [queue for queue in queues if work.flow_of(queue) in self._flows] if self._flows else queues

    def _in_order(self) -> list[tuple[DueWork, frozenset[str]]]:
        """Sort by rank, each with its queues; within one rank, each comes first in turn."""
        turn = self._turn % max(1, len(self._due_work))
        due_work = list(zip(self._due_work, self._asked, strict=False))  # one that was added just now waits a turn
        return sorted([*due_work[turn:], *due_work[:turn]], key=lambda pair: pair[0].rank)

    def _time_to_next(self, found: int, limit: int, next_in: float | None) -> float:
        if found >= limit or (found and next_in is not None and next_in <= 0):
            return 0.0
        if next_in is None or next_in > 0:
            return SOON if next_in is None else min(SOON, max(0.001, next_in))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)  # due, but held by another worker
        return self._pause

    def _store_unavailable(self, error: Exception) -> float:
        log.warning("the store cannot be asked what is due, will try again: %s", error)
        self._retry = min(self._retry * 2, LONGEST_RETRY)
        return self._retry

    # -- working ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        while self._backlog and self._executor.free and not self.draining:
            until, work, record = self._backlog.popleft()
            if self.runtime.clock.monotonic() < until:  # later it is due again, and another worker may have it
                self.begun += 1
                self._executor.submit(self._carry_out(work, record), awaited=_is_async(work, record))

    def _carry_out(self, work: DueWork, record: Record) -> Operation[None]:
        began = self.runtime.clock.monotonic()
        about = _about(work, record)
        token = about_var.set(about)
        try:
            yield from work.carry_out(record)
        except CannotOpen as error:  # it stays unreadable, so it is put off
            log.error("could not carry out %s: %s", record.at.space, error, extra=_fields(about))
            yield from self._postpone(work, record)
        except (StoreError, ClaimLost) as error:  # due again when its lease lapses
            log.warning("left %s behind: %s", record.at.space, error, extra=_fields(about))
        except Exception:
            log.exception("could not carry out %s", record.at.space, extra=_fields(about))
            yield from self._postpone(work, record)
        finally:
            about_var.reset(token)
            self._pace += (max(0.001, self.runtime.clock.monotonic() - began) - self._pace) / 8

    def _postpone(self, work: DueWork, record: Record) -> Operation[None]:
        try:
            yield from postpone(self.runtime.store, record, work.pause_before_retry(record))
        except StoreError as error:
            log.warning("could not put off %s: %s", record.at.space, error, extra=_fields(about_var.get()))

    # -- ending ----------------------------------------------------------------------------------

    def _drain(self, patience: float) -> int:
        clock = self.runtime.clock
        until = clock.monotonic() + patience
        if self._executor.taken:
            log.info("draining: %d under way have %g s to come to the end of a step", self._executor.taken, patience)
        while self._executor.taken and not self._stopping and (left := until - clock.monotonic()) > 0:
            self._watch.wait(left)
        if not self._executor.taken:
            self.runtime.draining = False  # an app that goes on without a worker may run flows
        return self._executor.taken


def _closed(error: Exception) -> bool:
    """Whether the store was closed by its app, and will not come back."""
    return isinstance(error, StoreUnavailable) and bool(error.data.get("closed"))


def _is_async(work: DueWork, record: Record) -> bool:
    try:
        return work.is_async(record)
    except Exception:  # noqa: BLE001 - carrying it out raises the same, where it is handled
        return False


def _about(work: DueWork, record: Record) -> About:
    try:
        return work.about(record)
    except Exception:  # noqa: BLE001 - it cannot be read, which carrying it out reports: its address is enough here
        run = short_id(record.at.space)
        return About(run, run, *parse_space(record.at.space)[1:])


def _fields(about: About) -> dict[str, str]:
    """For handlers that do not have RunFilter."""
    return {name: value for name, value in structs.asdict(about).items() if value}


# -- its threads ---------------------------------------------------------------------------------


class InterruptibleCall(Generic[R]):
    """A blocking call on another thread that can be abandoned.

    On a network that has gone silent a call can take a minute, and a process that is told to end cannot wait for it.
    """

    def __init__(self) -> None:
        self._thread = SerialThread("twiceproof-look")
        self._answers: SimpleQueue[R | BaseException | None] = SimpleQueue()

    def call(self, function: Callable[[], R], is_aborted: Callable[[], bool]) -> R | None:
        """Return the function's result, or None if the call was aborted."""
        answers = self._answers = SimpleQueue()  # a late result of an earlier call is not taken for this one's
        if is_aborted():  # before the new queue was there
            return None
        self._thread.do(lambda: answers.put(_result_or_error(function)))
        found = answers.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def abort(self) -> None:
        self._answers.put(None)

    def close(self) -> None:
        self._thread.stop(0)


def _result_or_error(function: Callable[[], R]) -> R | BaseException:
    try:
        return function()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
        return error


class RunExecutor:
    """Carries out so many operations at once: blocking ones on threads, awaiting ones on one event loop.

    `freed` is called when a place becomes free. Threads are daemons: a step that never ends cannot keep the process.
    """

    def __init__(self, count: int, freed: Callable[[], None]) -> None:
        self._count = count
        self._freed = freed
        self._mutex = threading.Lock()
        self._taken = 0
        self._blocking = 0  # of these, on threads
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[Operation[None] | None] = SimpleQueue()
        self._loop: LoopThread | None = None  # made for the first awaiting one

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def free(self) -> int:
        return self._count - self._taken

    def submit(self, operation: Operation[None], *, awaited: bool) -> None:
        with self._mutex:
            self._taken += 1
            self._blocking += not awaited
        if awaited:
            self._loop = self._loop or LoopThread("twiceproof-work-loop")
            self._loop.submit(self._await(operation))
        else:
            if self._blocking > len(self._threads):
                self._threads.append(start_thread(self._serve, f"twiceproof-work-{len(self._threads) + 1}"))
            self._work.put(operation)

    def _serve(self) -> None:
        while (operation := self._work.get()) is not None:
            try:
                block(operation)
            except BaseException:  # one bad run must not cost a place
                log.exception("something broke out of a run")
            finally:
                self._leave(blocking=True)

    async def _await(self, operation: Operation[None]) -> None:
        try:
            await await_(operation)
        except BaseException:  # as above
            log.exception("something broke out of a run")
        finally:
            self._leave(blocking=False)

    def _leave(self, *, blocking: bool) -> None:
        with self._mutex:
            self._taken -= 1
            self._blocking -= blocking
        self._freed()

    def close(self) -> None:
        """End the threads if all places are free. Otherwise what is still at work ends with the process."""
        if self._taken:
            return
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        if self._loop is not None:
            self._loop.close()
        self._threads, self._loop = [], None
