"""Worker: fetch what is due, run it, drain."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from queue import SimpleQueue
from typing import Generic, TypeVar

from msgspec import structs

from ...claims.run_ids import short_id
from ...errors import CannotOpen, ClaimLost, Misuse, StoreError, StoreUnavailable
from ...operations import Operation, block
from ...records import Record
from ...stores.notifications import SOON, queue_channel
from ...threads import SerialThread
from ..runtime import Runtime, postpone
from .due_work import DueWork
from .executor import RunExecutor
from .log import About, about_var
from .presence import Presence
from .store_clock import StoreClock

__all__ = ["InterruptibleCall", "Worker"]


R = TypeVar("R")


class InterruptibleCall(Generic[R]):
    """On a network that has gone silent a question can take a minute, which a process that is told to end has not."""

    def __init__(self) -> None:
        self._hand = SerialThread("twiceproof-look")
        self._news: SimpleQueue[R | BaseException | None] = SimpleQueue()

    def send(self, look: Callable[[], R], called_away: Callable[[], bool]) -> R | None:
        """What was found, or None if we were called away: then nobody wants it any more."""
        news = self._news = SimpleQueue()  # what an earlier one brings late is not taken for this one's
        if called_away():  # before anybody could have told us
            return None
        self._hand.do(lambda: news.put(_told(look)))
        found = news.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def abort(self) -> None:
        self._news.put(None)

    def close(self) -> None:
        self._hand.stop(0)


def _told(look: Callable[[], R]) -> R | BaseException:
    try:
        return look()
    except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
        return error


log = logging.getLogger("twiceproof.work")

HIDE = 5.0  # what was handed out is due again after so long, unless it was taken
AHEAD = 0.1  # fetch what will be begun within so many seconds: more would lie here while other workers are idle
MOST = 500  # at once
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # while somebody else holds what is due
FIRST_RETRY, LONGEST_RETRY = 1.0, 30.0  # while the store does not answer


class Worker:
    """One thread looks and hands out; the places do the work."""

    def __init__(
        self,
        parts: Runtime,
        duties: Sequence[DueWork],
        *,
        concurrency: int = 10,
        flows: Collection[str] = (),
        presence: Presence | None = None,
    ) -> None:
        if concurrency < 1:
            raise Misuse(f"A worker with {concurrency} places does nothing; give it one or more.")
        self.parts = parts
        self.begun = 0
        self._duties = duties
        self._flows = frozenset(flows)  # none: all that are declared
        self._presence = presence
        self._concurrency = concurrency
        self._watch = parts.store.watch(())
        self._heard: list[list[str]] = []
        self._places = RunExecutor(concurrency, self._watch.wake)
        self._scout: InterruptibleCall[tuple[int, float | None]] = InterruptibleCall()
        self._times = StoreClock(parts.store, parts.clock)
        self._backlog: deque[tuple[float, DueWork, Record]] = deque()  # until when it is hidden, and what it is
        self._pace = 1.0  # how long a run takes, about
        self._turn = 0
        self._pause = FIRST_PAUSE
        self._retry = FIRST_RETRY
        self._idle = False
        self._looked = False  # at least once
        self.draining = False
        self._stopping = False

    @property
    def taken(self) -> int:
        """How many runs it is at."""
        return self._places.taken

    # -- from outside; signal handlers may call these --------------------------------------------

    def wake(self) -> None:
        """Look again now."""
        self._watch.wake()

    def drain(self) -> None:
        """Take nothing new; steps that run may end; runs are given back before their next one."""
        self.draining = self.parts.draining = True
        self._scout.abort()
        self._watch.wake()

    def stop(self) -> None:
        """At once. What is under way is recovered by others when its lease is over."""
        self._stopping = True
        self.drain()

    # -- serving ---------------------------------------------------------------------------------

    def run(self, *, until_idle: bool = False, patience: float = 30.0) -> int:
        """Serve until told to drain, or until nothing is due or running. How many runs were left unfinished here."""
        try:
            self._check()
            if self._presence is not None and not until_idle:
                self._presence.start()
            while not self.draining:
                pause = self._round()
                if until_idle and self._idle:
                    break
                if pause > 0:
                    self._watch.wait(pause)
            return self._wind_down(patience)
        finally:
            if self._presence is not None and not until_idle:
                self._presence.leave()
            self._scout.close()
            self._watch.close()
            self._places.close()

    def _check(self) -> None:
        """Before a worker begins, now and then, and when the store's clock was set: is everything where it belongs?"""
        block(self._times.check())
        for duty in self._duties:
            block(duty.prepare())

    def _round(self) -> float:
        """Fill the free places. In how many seconds to look again."""
        self._idle = False
        self._begin()
        if self._backlog or not self._places.free:
            return SOON  # a place that becomes free wakes us
        calm = not self._places.taken  # before we look: what ends afterwards may have left something to do
        limit = min(MOST, self._places.free + int(self._concurrency * AHEAD / self._pace))
        try:
            seen = self._scout.send(lambda: self._look(limit), lambda: self.draining)
        except Exception as error:
            if not _closed(error):
                return self._baffled(error)  # a worker outlives its store's bad hours
            if not self._looked:
                raise
            log.warning("the app was closed, so its worker ends: %s", error)
            self.drain()
            return 0.0
        if seen is None:  # told to drain: what is handed out meanwhile is due again when it is no longer hidden
            return 0.0
        self._looked = True
        found, next_in = seen
        self._retry = FIRST_RETRY
        self._begin()
        self._idle = calm and not found and (next_in is None or next_in > 0)
        if found:
            self._pause = FIRST_PAUSE
        return self._time_to_next(found, limit, next_in)

    def _look(self, limit: int) -> tuple[int, float | None]:
        """How many were found, and in how long there will be more. Each duty comes first in turn."""
        self._listen()
        self._turn += 1
        found, next_in = 0, None
        for duty in self._in_order():
            queues = self._queues(duty)
            if not queues or found >= limit or self.draining:
                continue
            until = self.parts.clock.monotonic() + HIDE
            due = self.parts.store.due(duty.kind, queues=queues, limit=limit - found, hide=HIDE).block()
            self._times.hear(due.now)
            self._backlog.extend((until, duty, record) for record in due.records)
            found += len(due.records)
            if due.next_in is not None:
                next_in = due.next_in if next_in is None else min(next_in, due.next_in)
        if self._times.is_due:  # after the look, which tells the time; what is put right rings
            self._check()
        return found, next_in

    def _listen(self) -> None:
        """For what falls due in our queues; they are gone through only if they have changed."""
        queues = [self._queues(duty) for duty in self._duties]
        if queues != self._heard:
            self._heard = [list(each) for each in queues]
            self._watch.move(queue_channel(queue) for each in queues for queue in each)

    def _queues(self, duty: DueWork) -> list[str]:
        queues = duty.queues()
        return [queue for queue in queues if duty.flow_of(queue) in self._flows] if self._flows else queues

    def _in_order(self) -> list[DueWork]:
        """By rank; within one, each comes first in turn."""
        turn = self._turn % max(1, len(self._duties))
        return sorted([*self._duties[turn:], *self._duties[:turn]], key=lambda duty: duty.rank)

    def _time_to_next(self, found: int, limit: int, next_in: float | None) -> float:
        if found >= limit or (found and next_in is not None and next_in <= 0):
            return 0.0
        if next_in is None or next_in > 0:
            return SOON if next_in is None else min(SOON, max(0.001, next_in))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)  # due, but somebody else is at it
        return self._pause

    def _baffled(self, error: Exception) -> float:
        log.warning("the store cannot be asked what is due, will try again: %s", error)
        self._retry = min(self._retry * 2, LONGEST_RETRY)
        return self._retry

    # -- working ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        while self._backlog and self._places.free and not self.draining:
            until, duty, record = self._backlog.popleft()
            if self.parts.clock.monotonic() < until:  # afterwards it was due again, and is somebody else's
                self.begun += 1
                self._places.fill(self._carry(duty, record), awaited=_awaits(duty, record))

    def _carry(self, duty: DueWork, record: Record) -> Operation[None]:
        began = self.parts.clock.monotonic()
        about = _about(duty, record)
        token = about_var.set(about)
        try:
            yield from duty.carry_out(record)
        except CannotOpen as error:  # nor will it be readable in a moment
            log.error("could not carry out %s: %s", record.at.space, error, extra=_fields(about))
            yield from self._put_off(duty, record)
        except (StoreError, ClaimLost) as error:  # due again when its time is over
            log.warning("left %s behind: %s", record.at.space, error, extra=_fields(about))
        except Exception:
            log.exception("could not carry out %s", record.at.space, extra=_fields(about))
            yield from self._put_off(duty, record)
        finally:
            about_var.reset(token)
            self._pace += (max(0.001, self.parts.clock.monotonic() - began) - self._pace) / 8

    def _put_off(self, duty: DueWork, record: Record) -> Operation[None]:
        try:
            yield from postpone(self.parts.store, record, duty.put_off(record))
        except StoreError as error:
            log.warning("could not put off %s: %s", record.at.space, error, extra=_fields(about_var.get()))

    # -- ending ----------------------------------------------------------------------------------

    def _wind_down(self, patience: float) -> int:
        clock = self.parts.clock
        until = clock.monotonic() + patience
        if self._places.taken:
            log.info("draining: %d under way have %g s to come to the end of a step", self._places.taken, patience)
        while self._places.taken and not self._stopping and (left := until - clock.monotonic()) > 0:
            self._watch.wait(left)
        if not self._places.taken:
            self.parts.draining = False  # an app that goes on without a worker may run its flows
        return self._places.taken


def _closed(error: Exception) -> bool:
    """By whoever opened it: nobody opens it again."""
    return isinstance(error, StoreUnavailable) and bool(error.data.get("closed"))


def _awaits(duty: DueWork, record: Record) -> bool:
    try:
        return duty.awaits(record)
    except Exception:  # noqa: BLE001 - carrying it out meets the same, where it is dealt with
        return False


def _about(duty: DueWork, record: Record) -> About:
    try:
        return duty.about(record)
    except Exception:  # noqa: BLE001 - it cannot be read, which carrying it out meets too: its place says enough
        run = short_id(record.at.space)
        return About(run, run, *record.at.space.split("/", 2)[1:])


def _fields(about: About) -> dict[str, str]:
    """Also for handlers without our filter."""
    return {name: value for name, value in structs.asdict(about).items() if value}
