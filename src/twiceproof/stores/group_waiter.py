"""One caller in a group commit: thread or event loop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from ..errors import StoreError, StoreUnavailable
from ..operations import Request

if TYPE_CHECKING:
    import asyncio

__all__ = ["MOST", "Interrupted", "PendingCommit", "Together", "should_yield", "wake", "yield_to_loop"]


MOST = 64  # answers on the spot, of a few microseconds each; giving way costs about as much as one


class _Answers(threading.local):
    """On this thread, and so on this event loop, since others had their turn."""

    given = 0


_answers = _Answers()


def should_yield() -> bool:
    """Counts an answer. True: it was one too many."""
    _answers.given += 1
    if _answers.given < MOST:
        return False
    _answers.given = 0
    return True


async def yield_to_loop() -> None:
    """A cancellation may arrive here: it finds the answer given, as it would on a store that takes a while."""
    from asyncio import sleep

    await sleep(0)


I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")  # an answer

TRIES = 3  # for whoever is led by somebody who is interrupted, again and again


def _import_running_loop() -> asyncio.AbstractEventLoop:
    """The event loop library is a third of the import time: those who never await need not pay for it."""
    global running_loop
    from asyncio import get_running_loop

    running_loop = get_running_loop
    return get_running_loop()


running_loop = _import_running_loop


class CommitQueue(Protocol):
    """What is asked of a gather: to be let in, and who leads."""

    instant: bool

    @property
    def leader(self) -> Any: ...

    def commit_alone(self, waiter: Any) -> bool: ...

    def enter(self, waiter: Any) -> bool: ...

    def lead(self) -> None: ...

    def ensure_leader(self, loop: asyncio.AbstractEventLoop | None = None) -> None: ...

    def still_has(self, waiter: Any) -> bool: ...

    def leave(self, waiter: Any) -> None: ...

    def ask_again(self, waiter: Any) -> Any: ...


class Interrupted(Struct, frozen=True):
    """In place of an answer: whoever led for this caller was interrupted, and what became of its item is not known."""

    by: str


class PendingCommit(Request[A], Generic[I, A]):
    """Used once. A blocking caller may have to lead a group; one that awaits never does."""

    __slots__ = ("_gather", "answer", "answered", "future", "gate", "item", "loop", "tries", "until")

    def __init__(self, gather: CommitQueue, item: I) -> None:
        self._gather = gather
        self.item = item
        self.answer: Any = None
        self.answered = False
        self.tries = 1
        self.until: float | None = None  # when to give up on a space that is held elsewhere
        self.loop: asyncio.AbstractEventLoop | None = None
        self.gate: threading.Lock | None = None
        self.future: asyncio.Future[None]

    def block(self) -> A:
        gather = self._gather
        try:
            if not gather.commit_alone(self):
                self.park()
                gather.enter(self)
            if not self.answered:
                self._wait_or_lead()
        except BaseException:
            self._finish_despite_interrupt()
            raise
        if type(self.answer) is Interrupted and self.tries < TRIES:
            return self._again().block()
        return self._outcome()

    def _again(self) -> PendingCommit[I, A]:
        """Another was interrupted, and we were not: asked once more, we hear the truth.

        By a new waiter: this one may be woken a second time.
        """
        again: PendingCommit[I, A] = self._gather.ask_again(self)
        return again

    def _finish_despite_interrupt(self) -> None:
        """The item may be on its way, and others may count on us to lead. Whoever interrupts us twice is in a hurry."""
        try:
            if self._gather.still_has(self):
                self._wait_or_lead()
        except BaseException:
            self._gather.leave(self)
            raise

    def park(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()

    def unpark(self) -> None:
        """Or it is awake already: an interrupted leader's callers are woken once more, perhaps by two at once."""
        if self.gate is not None and self.gate.locked():
            with contextlib.suppress(RuntimeError):
                self.gate.release()

    def _wait_or_lead(self) -> None:
        while not self.answered:
            if self._gather.leader is self:
                self._gather.lead()
            elif self.gate is not None:
                self.gate.acquire()

    # One of several that a caller has in the line, see `Together`.

    def stand_in_line(self) -> None:
        self.park()
        self._gather.enter(self)

    def stand_through(self) -> None:
        self._wait_or_lead()

    def step_out(self) -> None:
        if not self.answered:
            self._gather.leave(self)

    def settled(self) -> A | Exception:
        """The answer, or the error that is one."""
        try:
            if type(self.answer) is Interrupted and self.tries < TRIES:
                return self._again().block()
            return self._outcome()
        except Exception as error:  # noqa: BLE001 - of this item alone
            return error

    async def wait(self) -> A:
        if self._gather.instant and self._gather.commit_alone(self):
            if should_yield():
                await yield_to_loop()
            return self._outcome()
        self.loop = loop = running_loop()
        self.future = loop.create_future()
        if self._gather.enter(self):
            # Not at once: whatever else is ready on this loop joins the group first.
            loop.call_soon(self._gather.ensure_leader, loop)
        try:
            await self.future
        except GeneratorExit:  # thrown away, and cannot wait any more
            raise
        except BaseException:  # a cancellation
            await _finish_despite_interrupt(self, loop)
            raise
        if type(self.answer) is Interrupted and self.tries < TRIES:
            return await self._again().wait()
        return self._outcome()

    def _outcome(self) -> A:
        if type(self.answer) is Interrupted:
            raise _not_known(self.answer)
        if isinstance(self.answer, BaseException):
            raise _ones_own(self.answer)
        answer: A = self.answer
        return answer


class Together(Request[Sequence[A | Exception]], Generic[I, A]):
    """Several items of one caller, in the line at once. An error is an answer: the others' are not lost with it."""

    __slots__ = ("_waiters",)

    def __init__(self, waiters: Sequence[PendingCommit[I, A]]) -> None:
        self._waiters = waiters

    def block(self) -> Sequence[A | Exception]:
        try:
            for waiter in self._waiters:
                waiter.stand_in_line()
            # In their order: whichever of them is to lead next, those before it have been answered.
            for waiter in self._waiters:
                waiter.stand_through()
        except BaseException:
            for waiter in self._waiters:
                waiter.step_out()
            raise
        return [waiter.settled() for waiter in self._waiters]

    async def wait(self) -> Sequence[A | Exception]:
        import asyncio

        answers = await asyncio.gather(*[waiter.wait() for waiter in self._waiters], return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, Exception):
                raise answer
        return answers  # type: ignore[return-value]


async def _finish_despite_interrupt(waiter: PendingCommit[Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Wait for the truth about a write that is on its way, so that a cancelled caller can put it right."""
    import asyncio

    while not waiter.answered:
        waiter.future = loop.create_future()  # the cancellation has used up the one before
        with contextlib.suppress(asyncio.CancelledError):
            await waiter.future


def wake(waiters: list[PendingCommit[Any, Any]]) -> None:
    """Each thread by its gate, each event loop once for all of its waiters."""
    loops: dict[asyncio.AbstractEventLoop, list[PendingCommit[Any, Any]]] = {}
    for waiter in waiters:
        if waiter.loop is None:
            waiter.answered = True
            waiter.unpark()
        else:
            loops.setdefault(waiter.loop, []).append(waiter)
    for loop, mine in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            loop.call_soon_threadsafe(_deliver, mine)


def _deliver(waiters: list[PendingCommit[Any, Any]]) -> None:
    for waiter in waiters:
        waiter.answered = True
        if not waiter.future.done():
            waiter.future.set_result(None)


def _not_known(interrupted: Interrupted) -> StoreUnavailable:
    return StoreUnavailable(
        f"The thread that was committing for this caller was interrupted ({interrupted.by}); "
        "the write may or may not have landed. Read before you try again.",
        unsure=True,
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
