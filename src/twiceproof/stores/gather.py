"""Gathers what many callers ask at the same time into one piece of work.

While one group is being worked on, further items wait; the next group takes them all. There are no timers:
a lone caller never waits for company, and one that had company the last time only lets others run first.
Somebody *leads* each group: a blocking caller that finds nobody at work leads on its own thread, without a
hop; on behalf of event loops the store's own thread leads.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from time import sleep as give_way  # of no seconds: whoever waits for the interpreter's lock goes first
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..drive import Request
from ..errors import StoreError, StoreUnavailable
from . import turn
from .base import Again
from .crowd import Crowd
from .hand import Hand
from .signals import is_a_signals

__all__ = ["Gather", "held_elsewhere"]

if TYPE_CHECKING:
    import asyncio

I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")  # an answer

HELD_ELSEWHERE_PAUSE = 0.005


def _import_running_loop() -> asyncio.AbstractEventLoop:
    """The event loop library is a third of the import time: those who never await need not pay for it."""
    global running_loop
    from asyncio import get_running_loop

    running_loop = get_running_loop
    return get_running_loop()


running_loop = _import_running_loop


class Gather(Generic[I, A]):
    """Runs `work` on groups of items, one group at a time."""

    def __init__(
        self,
        work: Callable[[Sequence[I]], Sequence[A | Again | Exception]],
        *,
        limit: int,
        hand: Hand,
        sleep: Callable[[float], None],
        monotonic: Callable[[], float],
        patience: float,
        apart: Callable[[I], Hashable] | None = None,
        given_up: Callable[[I], Exception] | None = None,
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
        self.reset()

    def reset(self) -> None:
        """In a forked child: whoever was waiting or leading does not exist here."""
        self._mutex = threading.Lock()
        self._queue: deque[_Ask[I, A]] = deque()
        self._group: list[_Ask[I, A]] | None = None  # what is being worked on
        self.leader: _Ask[I, A] | None = None  # the blocking caller whose turn it is to lead
        self._handed = False  # whether the hand was told to lead
        self._company = 0  # how many threads were answered last time
        self._crowd = Crowd()
        self._promised: asyncio.AbstractEventLoop | None = None  # the loop that said it would have somebody lead

    def ask(self, item: I) -> Request[A]:
        return _Ask(self, item)

    @property
    def busy(self) -> bool:
        """Whether a group is under way or about to be. To others a hint: it may have changed when they look.

        Put together from what is so, and each of these changes in one step: a signal's exception that hits in between
        can never leave a gather that is busy for ever.
        """
        return self._group is not None or self.leader is not None or self._promised is not None or self._handed

    def enter(self, ask: _Ask[I, A]) -> bool:
        """Stand in the queue. True: nobody is at work, so the caller must lead (or have somebody lead)."""
        with self._mutex:
            self._queue.append(ask)
            self._crowd.came()
            if self._promised is None:
                return not self.busy and self._must_lead(ask)
            if self._promised is ask.loop:
                return False
            # A promise that nobody has kept yet is free to take: a blocking caller on that very loop's thread would
            # wait for it for ever, and another loop for as long as that one is held up.
            if ask.loop is None:
                self.leader = ask
            else:
                self._handed = True
            self._promised = None
        if ask.loop is not None:
            self._hand_over()
        return False

    def _must_lead(self, ask: _Ask[I, A]) -> bool:
        if ask.loop is None:
            self.leader = ask
        else:
            self._promised = ask.loop
        return True

    def still_has(self, ask: _Ask[I, A]) -> bool:
        """For an interrupted caller: whether its item is still on its way. If nobody leads, it must."""
        with self._mutex:
            waiting = ask in self._queue
            if waiting and (self._promised is not None or not self.busy):
                self._promised, self.leader = None, ask
            return not ask.answered and (waiting or (self._group is not None and ask in self._group))

    def leave(self, ask: _Ask[I, A]) -> None:
        """For a caller interrupted once more, which waits no longer: nobody may count on it to lead."""
        with self._mutex:
            self._queue = deque(other for other in self._queue if other is not ask)
            if self.leader is not ask:
                return
            self.leader = None
        self._pass_on([])

    def keep_promise(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
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

    def work_alone(self, ask: _Ask[I, A]) -> bool:
        """A blocking caller with nobody beside it needs no queue and no gate. False: somebody is, or was just now."""
        mine = [ask]
        try:
            with self._mutex:
                if self._company > 1 or self.busy or self._queue:
                    return False
                self._group = mine
            self._finish_alone(ask, self._answers(mine))
        except BaseException as error:
            self._recover(error, mine)
            raise
        return True

    def _finish_alone(self, ask: _Ask[I, A], answers: Sequence[Any]) -> None:
        if type(answers[0]) is Again:  # from now on it is one of those who wait
            ask.close_the_gate()
            self._finish([ask], answers)
            return
        ask.answer, ask.answered = answers[0], True
        with self._mutex:
            if not self._queue:
                self._group = None
                return
        self._pass_on([])  # somebody came meanwhile

    def lead(self) -> None:
        """Work on one group, answer its callers, and pass the lead on."""
        group: list[_Ask[I, A]] = []
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

    def _answers(self, group: list[_Ask[I, A]]) -> Sequence[Any]:
        try:
            answers: Sequence[Any] = self._work([ask.item for ask in group])
        except Exception as error:
            if is_a_signals(error):
                raise
            return [error] * len(group)  # it belongs to the callers, who raise it
        if len(answers) != len(group):  # or nobody would be answered, ever
            wrong = TypeError(f"{len(group)} items were given {len(answers)} answers; repair the engine.")
            return [wrong] * len(group)
        return answers

    def _recover(self, error: BaseException, group: list[_Ask[I, A]]) -> None:
        """Finish what was interrupted: pass the lead on unless that was done, and tell everybody in the group."""
        if self._group is group:
            for ask in group:
                if ask.answer is None:
                    ask.answer = _interrupted(error)
            with self._mutex:  # some may stand there still, or again, or be about to lead: answered, they never would
                self._handed, self.leader = False, None
                self._queue = deque(ask for ask in self._queue if ask.answer is None)
            self._pass_on([])
        else:  # the lead was passed on, the word of it perhaps not
            self._tell_leader()
        _wake([ask for ask in group if ask.answer is not None])  # the others have been put back, and are not ours now

    def _fill(self, group: list[_Ask[I, A]]) -> None:
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

    def _pick(self, most: int) -> list[_Ask[I, A]]:
        """As many as may go together, brought to the front of the queue in their order."""
        group: list[_Ask[I, A]] = []
        rest: list[_Ask[I, A]] = []
        seen: set[Hashable] = set()
        for ask in self._queue:
            mark = None if self._apart is None else self._apart(ask.item)
            if len(group) == most or (mark is not None and mark in seen):
                rest.append(ask)
            else:
                seen.add(mark)
                group.append(ask)
        self._queue = deque([*group, *rest])
        return group

    def _finish(self, group: list[_Ask[I, A]], answers: Sequence[Any]) -> None:
        """Pass the lead on, then answer everyone: the next group is on its way while these callers wake up."""
        again: list[_Ask[I, A]] = []
        answered: list[_Ask[I, A]] = []
        for ask, answer in zip(group, answers, strict=True):
            if type(answer) is Again and self._may_try_again(ask):
                again.append(ask)
            else:
                ask.answer = self._given_up(ask.item) if type(answer) is Again else answer
                answered.append(ask)
        try:
            if not answered:
                self._sleep(HELD_ELSEWHERE_PAUSE)
        finally:  # also when Ctrl-C hits in the pause: others count on somebody to lead
            self._company = sum([ask.loop is None for ask in answered])
            self._crowd.left(len(answered))
            self._pass_on(again)
            _wake(answered)

    def _may_try_again(self, ask: _Ask[I, A]) -> bool:
        now = self._monotonic()
        if ask.until is None:
            ask.until = now + self._patience
        return now < ask.until

    def _pass_on(self, again: list[_Ask[I, A]]) -> None:
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
            leader.open_the_gate()  # unanswered: it learns that it leads
        elif self._handed:
            self._hand_over()


class _Ask(Request[A], Generic[I, A]):
    """One caller's item on its way through a gather, and who waits for its answer: a thread or an event loop."""

    __slots__ = ("_gather", "answer", "answered", "future", "gate", "item", "loop", "until")

    def __init__(self, gather: Gather[I, A], item: I) -> None:
        self._gather = gather
        self.item = item
        self.answer: Any = None
        self.answered = False
        self.until: float | None = None  # when to give up on a space that is held elsewhere
        self.loop: asyncio.AbstractEventLoop | None = None
        self.gate: threading.Lock | None = None
        self.future: asyncio.Future[None]

    def block(self) -> A:
        gather = self._gather
        try:
            if not gather.work_alone(self):
                self.close_the_gate()
                gather.enter(self)
            if not self.answered:
                self._pass_the_gate()
        except BaseException:
            self._see_through()
            raise
        return self._outcome()

    def _see_through(self) -> None:
        """The item may be on its way, and others may count on us to lead. Whoever interrupts us twice is in a hurry."""
        try:
            if self._gather.still_has(self):
                self._pass_the_gate()
        except BaseException:
            self._gather.leave(self)
            raise

    def close_the_gate(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()

    def open_the_gate(self) -> None:
        """Or it is awake already: an interrupted leader's callers are woken once more, perhaps by two at once."""
        if self.gate is not None and self.gate.locked():
            with contextlib.suppress(RuntimeError):
                self.gate.release()

    def _pass_the_gate(self) -> None:
        while not self.answered:
            if self._gather.leader is self:
                self._gather.lead()
            elif self.gate is not None:
                self.gate.acquire()

    async def wait(self) -> A:
        if self._gather.instant and self._gather.work_alone(self):
            if turn.is_over():
                await turn.give_way()
            return self._outcome()
        self.loop = loop = running_loop()
        self.future = loop.create_future()
        if self._gather.enter(self):
            # Not at once: whatever else is ready on this loop joins the group first.
            loop.call_soon(self._gather.keep_promise, loop)
        try:
            await self.future
        except GeneratorExit:  # thrown away, and cannot wait any more
            raise
        except BaseException:  # a cancellation
            await _see_through(self, loop)
            raise
        return self._outcome()

    def _outcome(self) -> A:
        if isinstance(self.answer, BaseException):
            raise _ones_own(self.answer)
        answer: A = self.answer
        return answer


async def _see_through(ask: _Ask[Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Wait for the truth about a write that is on its way, so that a cancelled caller can put it right."""
    import asyncio

    while not ask.answered:
        ask.future = loop.create_future()  # the cancellation has used up the one before
        with contextlib.suppress(asyncio.CancelledError):
            await ask.future


def _wake(asks: list[_Ask[Any, Any]]) -> None:
    """Each thread by its gate, each event loop once for all of its asks."""
    loops: dict[asyncio.AbstractEventLoop, list[_Ask[Any, Any]]] = {}
    for ask in asks:
        if ask.loop is None:
            ask.answered = True
            ask.open_the_gate()
        else:
            loops.setdefault(ask.loop, []).append(ask)
    for loop, mine in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            loop.call_soon_threadsafe(_deliver, mine)


def _deliver(asks: list[_Ask[Any, Any]]) -> None:
    for ask in asks:
        ask.answered = True
        if not ask.future.done():
            ask.future.set_result(None)


def held_elsewhere(*, unsure: bool) -> StoreUnavailable:
    state = "the write may or may not have landed" if unsure else "nothing was written"
    return StoreUnavailable(
        f"Another transaction has held this space for too long; {state}. "
        "Look for a long-running transaction in the database, then try again.",
        unsure=unsure,
    )


def _ones_own(error: BaseException) -> BaseException:
    """One error may be the answer to many: what one caller notes on it ("the work was done") is not for the others."""
    if not isinstance(error, StoreError):
        return error.with_traceback(None)
    kind = type(error)
    own = kind.__new__(kind, *error.args)  # not by `__init__`: a kind of somebody else's may want other things there
    own.__dict__.update({name: value for name, value in error.__dict__.items() if name != "__notes__"})
    own.__cause__ = error.__cause__
    return own


def _interrupted(error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(
        f"The thread that was committing for this caller was interrupted ({type(error).__name__}); "
        "the write may or may not have landed. Read before you try again.",
        unsure=True,
    )
