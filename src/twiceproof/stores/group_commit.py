"""Gathers concurrent writes into one commit: who leads, who waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from time import sleep as give_way  # of no seconds: whoever waits for the interpreter's lock goes first
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import StoreUnavailable
from ..operations import Request
from ..threads import SerialThread, raised_by_signal_handler
from .base import Again
from .group_waiter import Interrupted, PendingCommit, Together, wake

if TYPE_CHECKING:
    import asyncio

__all__ = ["CallerEstimate", "GroupCommitter", "held_elsewhere"]


SMALLEST_HALF = 8  # fewer are not worth a commit of their own


class CallerEstimate:
    """A guess, for speed alone: nobody says goodbye, and two threads may count at once."""

    def __init__(self) -> None:
        self._answered = 0  # how many were, last time
        self._away = 0  # how many of those, and of those before them, have not come back

    def came(self) -> None:
        self._away -= 1

    def left(self, answered: int) -> None:
        """Who has been away for two groups may never come back: fewer and fewer of those are counted on."""
        stragglers = max(0, min(self._away, self._answered)) * 7 // 8
        self._answered, self._away = answered, answered + stragglers

    def half(self, waiting: int) -> int:
        around = waiting + max(0, self._away)
        return max(SMALLEST_HALF, (around + 1) // 2)


I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")  # an answer

HELD_ELSEWHERE_PAUSE = 0.005


class GroupCommitter(Generic[I, A]):
    """Runs `work` on groups of items, one group at a time."""

    def __init__(
        self,
        work: Callable[[Sequence[I]], Sequence[A | Again | Exception]],
        *,
        limit: int,
        hand: SerialThread,
        sleep: Callable[[float], None],
        monotonic: Callable[[], float],
        patience: float,
        apart: Callable[[I], Hashable] | None = None,
        given_up: Callable[[I], Exception] | None = None,
        doubt: Callable[[I], object] | None = None,
        instant: bool = False,
        remote: bool = False,
    ) -> None:
        self.instant = instant  # so short that an event loop may do it on the spot
        self._remote = remote  # somebody else's work: while they do it, we have time for our own
        self._work = work
        self._limit = limit
        self._hand = hand
        self._sleep = sleep
        self._monotonic = monotonic
        self._patience = patience
        self._apart = apart
        self._given_up = given_up or (lambda item: held_elsewhere(unsure=False))
        self._doubt = doubt  # hears of an item that may have been worked on, and is asked for once more
        self.reset()

    def reset(self) -> None:
        """In a forked child: whoever was waiting or leading does not exist here."""
        self._mutex = threading.Lock()
        self._queue: deque[PendingCommit[I, A]] = deque()
        self._group: list[PendingCommit[I, A]] | None = None  # what is being worked on
        self.leader: PendingCommit[I, A] | None = None  # the blocking caller whose turn it is to lead
        self._handed = False  # whether the hand was told to lead
        self._company = 0  # how many threads were answered last time
        self._crowd = CallerEstimate()
        self._promised: asyncio.AbstractEventLoop | None = None  # the loop that said it would have somebody lead

    def ask(self, item: I) -> Request[A]:
        return PendingCommit(self, item)

    def ask_each(self, items: Sequence[I]) -> Request[Sequence[A | Exception]]:
        return Together([PendingCommit(self, item) for item in items])

    def ask_again(self, waiter: PendingCommit[I, A]) -> PendingCommit[I, A]:
        if self._doubt is not None:
            self._doubt(waiter.item)
        again = PendingCommit[I, A](self, waiter.item)
        again.tries, again.until = waiter.tries + 1, waiter.until
        return again

    @property
    def busy(self) -> bool:
        """Whether a group is under way or about to be. To others a hint: it may have changed when they look.

        Put together from what is so, and each of these changes in one step: a signal's exception that hits in between
        can never leave a gather that is busy for ever.
        """
        return self._group is not None or self.leader is not None or self._promised is not None or self._handed

    def enter(self, waiter: PendingCommit[I, A]) -> bool:
        """Stand in the queue. True: nobody is at work, so the caller must lead (or have somebody lead)."""
        with self._mutex:
            self._queue.append(waiter)
            self._crowd.came()
            if self._promised is None:
                return not self.busy and self._must_lead(waiter)
            if self._promised is waiter.loop:
                return False
            # A promise that nobody has kept yet is free to take: a blocking caller on that very loop's thread would
            # wait for it for ever, and another loop for as long as that one is held up.
            if waiter.loop is None:
                self.leader = waiter
            else:
                self._handed = True
            self._promised = None
        if waiter.loop is not None:
            self._hand_over()
        return False

    def _must_lead(self, waiter: PendingCommit[I, A]) -> bool:
        if waiter.loop is None:
            self.leader = waiter
        else:
            self._promised = waiter.loop
        return True

    def still_has(self, waiter: PendingCommit[I, A]) -> bool:
        """For an interrupted caller: whether its item is still on its way. If nobody leads, it must."""
        with self._mutex:
            waiting = waiter in self._queue
            if waiting and (self._promised is not None or not self.busy):
                self._promised, self.leader = None, waiter
            return not waiter.answered and (waiting or (self._group is not None and waiter in self._group))

    def leave(self, waiter: PendingCommit[I, A]) -> None:
        """For a caller interrupted once more, which waits no longer: nobody may count on it to lead."""
        with self._mutex:
            self._queue = deque(other for other in self._queue if other is not waiter)
            if self.leader is not waiter:
                return
            self.leader = None
        self._pass_on([])

    def ensure_leader(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """As the loop that gave it; None: whoever did, because that loop is held up."""
        with self._mutex:
            if self._promised is None or (loop is not None and self._promised is not loop):
                return
            self._handed = True
            self._promised = None
        self._hand_over()

    def _hand_over(self) -> None:
        try:
            self._hand.do(self._lead_if_handed)
        except RuntimeError:  # no thread to be had: better that this one is held up than everybody, for ever
            self._lead_if_handed()

    def _lead_if_handed(self) -> None:
        """The hand may have been told twice, by one who was interrupted and did not know."""
        with self._mutex:
            if not self._handed:
                return
        self.lead()

    def commit_alone(self, waiter: PendingCommit[I, A]) -> bool:
        """A blocking caller with nobody beside it needs no queue and no gate. False: somebody is, or was just now."""
        mine = [waiter]
        try:
            with self._mutex:
                if self._company > 1 or self.busy or self._queue:
                    return False
                self._group = mine
            self._finish_alone(waiter, self._answers(mine))
        except BaseException as error:
            self._recover(error, mine)
            raise
        return True

    def _finish_alone(self, waiter: PendingCommit[I, A], answers: Sequence[Any]) -> None:
        if type(answers[0]) is Again:  # from now on it is one of those who wait
            waiter.park()
            self._finish([waiter], answers)
            return
        waiter.answer, waiter.answered = answers[0], True
        with self._mutex:
            if not self._queue:
                self._group = None
                return
        self._pass_on([])  # somebody came meanwhile

    def lead(self) -> None:
        """Work on one group, answer its callers, and pass the lead on."""
        group: list[PendingCommit[I, A]] = []
        try:
            if self._company > 1 and self.leader is not None:
                self._let_company_in()
            self._fill(group)
            self._finish(group, self._answers(group))
        except BaseException as error:
            # A signal's exception can hit anywhere in the main thread: those it leads for must not wait for ever.
            self._recover(error, group)
            raise

    def _let_company_in(self) -> None:
        """Threads that were answered together come back together. Whoever is first gives way as long as more come:
        alone it would pay for a commit of its own while all the others queue up for the next one.
        """
        there = 0
        while there < len(self._queue) < self._company:
            there = len(self._queue)
            give_way(0)

    def _answers(self, group: list[PendingCommit[I, A]]) -> Sequence[Any]:
        try:
            answers: Sequence[Any] = self._work([waiter.item for waiter in group])
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            return [error] * len(group)  # it belongs to the callers, who raise it
        if len(answers) != len(group):  # or nobody would be answered, ever
            wrong = TypeError(f"{len(group)} items were given {len(answers)} answers; repair the engine.")
            return [wrong] * len(group)
        return answers

    def _recover(self, error: BaseException, group: list[PendingCommit[I, A]]) -> None:
        """Finish what was interrupted: pass the lead on unless that was done, and tell everybody in the group."""
        if self._group is group:
            for waiter in group:
                if waiter.answer is None:
                    waiter.answer = Interrupted(type(error).__name__)
            with self._mutex:  # some may stand there still, or again, or be about to lead: answered, they never would
                self._handed, self.leader = False, None
                self._queue = deque(waiter for waiter in self._queue if waiter.answer is None)
            self._pass_on([])
        else:  # the lead was passed on, the word of it perhaps not
            self._tell_leader()
        # The others have been put back, and are not ours now.
        wake([waiter for waiter in group if waiter.answer is not None])

    def _fill(self, group: list[PendingCommit[I, A]]) -> None:
        """With those who go next."""
        with self._mutex:
            self._group = group  # first: from here on, whoever is interrupted knows what to put right
            most = self._most()
            group += self._queue if self._fits(most) else self._pick(most)
            self._handed, self.leader = False, None
            for _ in group:
                self._queue.popleft()

    def _most(self) -> int:
        """Where the work is done elsewhere, half of all who are around: while a server lands one half, the callers of
        the other are at work here. All of them together would wait for it, and then it for them.
        """
        if not self._remote:
            return self._limit
        return min(self._limit, self._crowd.half(len(self._queue)))

    def _fits(self, most: int) -> bool:
        return self._apart is None and len(self._queue) <= most

    def _pick(self, most: int) -> list[PendingCommit[I, A]]:
        """As many as may go together, brought to the front of the queue in their order."""
        group: list[PendingCommit[I, A]] = []
        rest: list[PendingCommit[I, A]] = []
        seen: set[Hashable] = set()
        for waiter in self._queue:
            mark = None if self._apart is None else self._apart(waiter.item)
            if len(group) == most or (mark is not None and mark in seen):
                rest.append(waiter)
            else:
                seen.add(mark)
                group.append(waiter)
        self._queue = deque([*group, *rest])
        return group

    def _finish(self, group: list[PendingCommit[I, A]], answers: Sequence[Any]) -> None:
        """Pass the lead on, then answer everyone: the next group is on its way while these callers wake up."""
        again: list[PendingCommit[I, A]] = []
        answered: list[PendingCommit[I, A]] = []
        for waiter, answer in zip(group, answers, strict=True):
            if type(answer) is Again and self._may_try_again(waiter):
                again.append(waiter)
            else:
                waiter.answer = self._given_up(waiter.item) if type(answer) is Again else answer
                answered.append(waiter)
        try:
            if not answered:
                self._sleep(HELD_ELSEWHERE_PAUSE)
        finally:  # also when Ctrl-C hits in the pause: others count on somebody to lead
            self._company = sum([waiter.loop is None for waiter in answered])
            self._crowd.left(len(answered))
            self._pass_on(again)
            wake(answered)

    def _may_try_again(self, waiter: PendingCommit[I, A]) -> bool:
        now = self._monotonic()
        if waiter.until is None:
            waiter.until = now + self._patience
        return now < waiter.until

    def _pass_on(self, again: list[PendingCommit[I, A]]) -> None:
        with self._mutex:
            self._queue.extendleft(reversed(again))
            head = self._queue[0] if self._queue else None
            if head is not None and head.loop is None:
                self.leader = head
            elif head is not None:
                self._handed = True
            self._group = None
        self._tell_leader()

    def _tell_leader(self) -> None:
        leader = self.leader
        if leader is not None:
            leader.unpark()  # unanswered: it learns that it leads
        elif self._handed:
            self._hand_over()


def held_elsewhere(*, unsure: bool) -> StoreUnavailable:
    state = "the write may or may not have landed" if unsure else "nothing was written"
    return StoreUnavailable(
        f"Another transaction has held this space for too long; {state}. "
        "Look for a long-running transaction in the database, then try again.",
        unsure=unsure,
    )
