"""Group commit: writes that arrive while a commit is under way share the next one.

`PendingCommit` is one caller's item, on a thread or an event loop. `GroupCommitter` queues the items and decides which
caller leads, that is, runs the work for a group. Two ways through:

- A lone blocking caller: `PendingCommit.block` → `GroupCommitter.commit_alone` → the work. No queue, no other thread.
- Several callers: `enqueue`; the first of them leads (for event loops, the store's thread does); the others wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from time import sleep as yield_gil  # with 0 seconds: threads that wait for the interpreter's lock run first
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from ..operations import Request
from ..threads import SerialThread, raised_by_signal_handler
from .base import SpaceBusy
from .waiting import (
    CallerEstimate,
    finish_despite_cancellation,
    held_elsewhere,
    own_copy,
    should_yield,
    unknown_outcome,
    wake,
    yield_to_loop,
)

if TYPE_CHECKING:
    import asyncio

__all__ = ["GroupCommitter", "Interrupted", "PendingCommit"]

I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")  # an answer

HELD_ELSEWHERE_PAUSE = 0.005
TRIES = 3  # for an item whose leader was interrupted, again and again


class Interrupted(Struct, frozen=True):
    """In place of an answer: the thread that led this caller's group was interrupted, so the outcome is unknown."""

    by: str


class PendingCommit(Request[A], Generic[I, A]):
    """One caller's item, used once. A blocking caller may have to lead a group; one that awaits never does."""

    __slots__ = ("_committer", "answer", "answered", "future", "gate", "item", "loop", "tries", "until")

    def __init__(self, committer: GroupCommitter[I, A], item: I) -> None:
        self._committer = committer
        self.item = item
        self.answer: Any = None
        self.answered = False
        self.tries = 1
        self.until: float | None = None  # when to give up on a space that another transaction holds
        self.loop: asyncio.AbstractEventLoop | None = None
        self.gate: threading.Lock | None = None
        self.future: asyncio.Future[None]

    def block(self) -> A:
        committer = self._committer
        try:
            if not committer.commit_alone(self):
                self.prepare_to_block()
                committer.enqueue(self)
            if not self.answered:
                self.wait_or_lead()
        except BaseException:
            self._finish_despite_interrupt()
            raise
        if type(self.answer) is Interrupted and self.tries < TRIES:
            return committer.retry(self).block()
        return self._outcome()

    async def wait(self) -> A:
        committer = self._committer
        if committer.instant and committer.commit_alone(self):
            if should_yield():
                await yield_to_loop()
            return self._outcome()
        import asyncio  # a third of the import time: blocking programs do not load it

        self.loop = loop = asyncio.get_running_loop()
        self.future = loop.create_future()
        if committer.enqueue(self):
            # Not at once: whatever else is ready on this loop joins the group first.
            loop.call_soon(committer.ensure_leader, loop)
        try:
            await self.future
        except GeneratorExit:  # the coroutine is being thrown away, and cannot wait any more
            raise
        except BaseException:  # a cancellation
            await finish_despite_cancellation(self, loop)
            raise
        if type(self.answer) is Interrupted and self.tries < TRIES:
            return await committer.retry(self).wait()
        return self._outcome()

    def enqueue(self) -> None:
        """Join the queue without waiting yet: for a caller with several items, see `CommitEach`."""
        self.prepare_to_block()
        self._committer.enqueue(self)

    def wait_or_lead(self) -> None:
        while not self.answered:
            if self._committer.leader is self:
                self._committer.lead()
            elif self.gate is not None:
                self.gate.acquire()

    def withdraw(self) -> None:
        if not self.answered:
            self._committer.withdraw(self)

    def outcome_or_error(self) -> A | Exception:
        try:
            if type(self.answer) is Interrupted and self.tries < TRIES:
                return self._committer.retry(self).block()
            return self._outcome()
        except Exception as error:  # noqa: BLE001 - of this item alone
            return error

    def prepare_to_block(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()

    def resume(self) -> None:
        """Callers of an interrupted leader are woken twice, perhaps by two threads at once: the second does nothing."""
        if self.gate is not None and self.gate.locked():
            with contextlib.suppress(RuntimeError):
                self.gate.release()

    def _finish_despite_interrupt(self) -> None:
        """Wait for an item that is on its way, and lead where others rely on it. A second interrupt ends the wait."""
        try:
            if self._committer.is_pending(self):
                self.wait_or_lead()
        except BaseException:
            self._committer.withdraw(self)
            raise

    def _outcome(self) -> A:
        if type(self.answer) is Interrupted:
            raise unknown_outcome(self.answer.by)
        if isinstance(self.answer, BaseException):
            raise own_copy(self.answer)
        answer: A = self.answer
        return answer


class GroupCommitter(Generic[I, A]):
    """Runs `work` on groups of items, one group at a time."""

    def __init__(
        self,
        work: Callable[[Sequence[I]], Sequence[A | SpaceBusy | Exception]],
        *,
        limit: int,
        thread: SerialThread,
        sleep: Callable[[float], None],
        monotonic: Callable[[], float],
        patience: float,
        separate_by: Callable[[I], Collection[Hashable]] | None = None,
        on_give_up: Callable[[I], Exception] | None = None,
        on_retry: Callable[[I], object] | None = None,
        instant: bool = False,
        remote: bool = False,
    ) -> None:
        self.instant = instant  # the work is so short that an event loop may do it itself
        self._remote = remote  # a server does the work: meanwhile there is time for the callers' own
        self._work = work
        self._limit = limit
        self._thread = thread  # leads for callers on event loops
        self._sleep = sleep
        self._monotonic = monotonic
        self._patience = patience
        self._separate_by = separate_by  # items with a value in common must not share a group
        self._on_give_up = on_give_up or (lambda item: held_elsewhere(unsure=False))
        self._on_retry = on_retry  # called with an item that may have been worked on, before it is tried again
        self.reset()

    def reset(self) -> None:
        """In a forked child: the callers that were waiting or leading do not exist here."""
        self._mutex = threading.Lock()
        self._queue: deque[PendingCommit[I, A]] = deque()
        self._group: list[PendingCommit[I, A]] | None = None  # the group under way
        self.leader: PendingCommit[I, A] | None = None  # the blocking caller that has to lead next
        self._thread_leads = False  # whether the store's thread was told to lead
        self._leading_loop: asyncio.AbstractEventLoop | None = None  # which will call `ensure_leader`
        self._threads_answered = 0  # in the last group
        self._callers = CallerEstimate()

    def request(self, item: I) -> PendingCommit[I, A]:
        return PendingCommit(self, item)

    def retry(self, pending: PendingCommit[I, A]) -> PendingCommit[I, A]:
        """The leader was interrupted, the caller was not: its item is tried once more, which finds out what happened.

        By a new request, because the old one may be woken a second time.
        """
        if self._on_retry is not None:
            self._on_retry(pending.item)
        again = PendingCommit[I, A](self, pending.item)
        again.tries, again.until = pending.tries + 1, pending.until
        return again

    @property
    def busy(self) -> bool:
        """Whether a group is under way or about to be. A hint to others: it may change at any time.

        Derived from four facts, each of which changes in one step: an exception from a signal handler in between can
        never leave a committer that is busy for ever.
        """
        return (
            self._group is not None or self.leader is not None or self._leading_loop is not None or self._thread_leads
        )

    # -- the lone caller -------------------------------------------------------------------------

    def commit_alone(self, pending: PendingCommit[I, A]) -> bool:
        """The fast path of a lone caller: no queue and no parking. False: others are, or just were, at work."""
        group = [pending]
        try:
            with self._mutex:
                if self._threads_answered > 1 or self.busy or self._queue:
                    return False
                self._group = group
            self._finish_alone(pending, self._answers(group))
        except BaseException as error:
            self._recover(error, group)
            raise
        return True

    def _finish_alone(self, pending: PendingCommit[I, A], answers: Sequence[Any]) -> None:
        if type(answers[0]) is SpaceBusy:  # from now on it waits as the others do
            pending.prepare_to_block()
            self._finish([pending], answers)
            return
        pending.answer, pending.answered = answers[0], True
        with self._mutex:
            if not self._queue:
                self._group = None
                return
        self._pass_on([])  # others came meanwhile

    # -- the queue -------------------------------------------------------------------------------

    def enqueue(self, pending: PendingCommit[I, A]) -> bool:
        """Join the queue. True: nothing is under way, so the caller must lead (or, on a loop, call `ensure_leader`)."""
        with self._mutex:
            self._queue.append(pending)
            self._callers.arrived()
            if self._leading_loop is None:
                return not self.busy and self._must_lead(pending)
            if self._leading_loop is pending.loop:
                return False
            # A promise that was not kept yet may be taken over: a blocking caller on that very loop's thread would
            # wait for it for ever, and another loop for as long as that one is held up.
            if pending.loop is None:
                self.leader = pending
            else:
                self._thread_leads = True
            self._leading_loop = None
        if pending.loop is not None:
            self._wake_thread()
        return False

    def _must_lead(self, pending: PendingCommit[I, A]) -> bool:
        if pending.loop is None:
            self.leader = pending
        else:
            self._leading_loop = pending.loop
        return True

    def is_pending(self, pending: PendingCommit[I, A]) -> bool:
        """For an interrupted caller: whether its item is still on its way. If no caller leads, this one must."""
        with self._mutex:
            waiting = pending in self._queue
            if waiting and (self._leading_loop is not None or not self.busy):
                self._leading_loop, self.leader = None, pending
            return not pending.answered and (waiting or (self._group is not None and pending in self._group))

    def withdraw(self, pending: PendingCommit[I, A]) -> None:
        """For a caller interrupted twice, which waits no longer: it must not be relied on to lead."""
        with self._mutex:
            self._queue = deque(other for other in self._queue if other is not pending)
            if self.leader is not pending:
                return
            self.leader = None
        self._pass_on([])

    def ensure_leader(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Have the store's thread lead, as `loop` promised; None: as any loop did, because that loop is held up."""
        with self._mutex:
            if self._leading_loop is None or (loop is not None and self._leading_loop is not loop):
                return
            self._thread_leads = True
            self._leading_loop = None
        self._wake_thread()

    def _wake_thread(self) -> None:
        try:
            self._thread.do(self._lead_if_told)
        except RuntimeError:  # no thread can be started: better to hold up this one than all callers, for ever
            self._lead_if_told()

    def _lead_if_told(self) -> None:
        """The thread may have been told twice, by a caller that was interrupted and did not know."""
        with self._mutex:
            if not self._thread_leads:
                return
        self.lead()

    # -- leading ---------------------------------------------------------------------------------

    def lead(self) -> None:
        """Work on one group, answer its callers, and pass the lead on."""
        group: list[PendingCommit[I, A]] = []
        try:
            if self._threads_answered > 1 and self.leader is not None:
                self._let_others_join()
            self._fill(group)
            self._finish(group, self._answers(group))
        except BaseException as error:
            # A signal handler can raise anywhere in the main thread: the group's callers must not wait for ever.
            self._recover(error, group)
            raise

    def _let_others_join(self) -> None:
        """Threads that were answered together come back together. The first yields as long as more of them arrive:
        alone it would pay for a commit of its own while all the others queue up for the next one.
        """
        there = 0
        while there < len(self._queue) < self._threads_answered:
            there = len(self._queue)
            yield_gil(0)

    def _answers(self, group: list[PendingCommit[I, A]]) -> Sequence[Any]:
        try:
            answers: Sequence[Any] = self._work([pending.item for pending in group])
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            return [error] * len(group)  # each caller raises it
        if len(answers) != len(group):  # or some would never be answered
            wrong = TypeError(f"{len(group)} items were given {len(answers)} answers; repair the engine.")
            return [wrong] * len(group)
        return answers

    def _recover(self, error: BaseException, group: list[PendingCommit[I, A]]) -> None:
        """Finish what was interrupted: pass the lead on unless that was done, and wake everyone in the group."""
        if self._group is group:
            for pending in group:
                if pending.answer is None:
                    pending.answer = Interrupted(type(error).__name__)
            with self._mutex:  # some may still, or again, be queued, or be about to lead: they are answered now
                self._thread_leads, self.leader = False, None
                self._queue = deque(pending for pending in self._queue if pending.answer is None)
            self._pass_on([])
        else:  # the lead was passed on, but the next leader perhaps not woken
            self._wake_leader()
        # Those without an answer were put back into the queue, and belong to the next group.
        wake([pending for pending in group if pending.answer is not None])

    def _fill(self, group: list[PendingCommit[I, A]]) -> None:
        """Take the next group from the queue."""
        with self._mutex:
            self._group = group  # first: from here on, an interrupted leader knows what to put right
            most = self._most()
            all_at_once = self._separate_by is None and len(self._queue) <= most
            group += self._queue if all_at_once else self._pick(most)
            self._thread_leads, self.leader = False, None
            for _ in group:
                self._queue.popleft()

    def _most(self) -> int:
        """Where a server does the work, half of the active callers: while it commits one half, the callers of the
        other run here. In one group all of them would wait for the server, and then the server for them.
        """
        if not self._remote:
            return self._limit
        return min(self._limit, self._callers.half(len(self._queue)))

    def _pick(self, most: int) -> list[PendingCommit[I, A]]:
        """As many as may share a group, moved to the front of the queue in their order."""
        group: list[PendingCommit[I, A]] = []
        left: list[PendingCommit[I, A]] = []
        seen: set[Hashable] = set()
        for pending in self._queue:  # no further than needed: there may be a hundred thousand
            if len(group) == most:
                break
            values = () if self._separate_by is None else self._separate_by(pending.item)
            fits = seen.isdisjoint(values)
            (group if fits else left).append(pending)
            seen.update(values if fits else ())
        if left:
            self._queue = deque([*group, *left, *list(self._queue)[len(group) + len(left) :]])
        return group

    def _finish(self, group: list[PendingCommit[I, A]], answers: Sequence[Any]) -> None:
        """Pass the lead on, then answer everyone: the next group is on its way while these callers wake up."""
        again: list[PendingCommit[I, A]] = []
        answered: list[PendingCommit[I, A]] = []
        for pending, answer in zip(group, answers, strict=True):
            if type(answer) is SpaceBusy and self._may_try_again(pending):
                again.append(pending)
            else:
                pending.answer = self._on_give_up(pending.item) if type(answer) is SpaceBusy else answer
                answered.append(pending)
        try:
            if not answered:
                self._sleep(HELD_ELSEWHERE_PAUSE)
        finally:  # also when Ctrl-C hits in the pause: the others need a leader
            self._threads_answered = sum([pending.loop is None for pending in answered])
            self._callers.answered(len(answered))
            self._pass_on(again)
            wake(answered)

    def _may_try_again(self, pending: PendingCommit[I, A]) -> bool:
        now = self._monotonic()
        if pending.until is None:
            pending.until = now + self._patience
        return now < pending.until

    def _pass_on(self, again: list[PendingCommit[I, A]]) -> None:
        with self._mutex:
            self._queue.extendleft(reversed(again))
            head = self._queue[0] if self._queue else None
            if head is not None and head.loop is None:
                self.leader = head
            elif head is not None:
                self._thread_leads = True
            self._group = None
        self._wake_leader()

    def _wake_leader(self) -> None:
        leader = self.leader
        if leader is not None:
            leader.resume()  # without an answer: it finds that it leads
        elif self._thread_leads:
            self._wake_thread()
