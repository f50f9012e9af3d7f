"""How callers wait for a store, on threads and event loops: requests, turns of a loop, waking, how many are active."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import StoreError, StoreUnavailable
from ..operations import Request

if TYPE_CHECKING:
    import asyncio

    from .group_commit import PendingCommit

__all__ = [
    "ANSWERS_PER_TURN",
    "CallerEstimate",
    "CommitEach",
    "finish_despite_cancellation",
    "held_elsewhere",
    "own_copy",
    "should_yield",
    "unknown_outcome",
    "wake",
    "yield_to_loop",
]


I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")  # an answer
R = TypeVar("R")


# -- requests ------------------------------------------------------------------------------------


class CommitEach(Request[Sequence[A | Exception]], Generic[I, A]):
    """Several items of one caller, queued at once. An error is an answer: those of the other items are not lost."""

    __slots__ = ("_commits",)

    def __init__(self, commits: Sequence[PendingCommit[I, A]]) -> None:
        self._commits = commits

    def block(self) -> Sequence[A | Exception]:
        try:
            for pending in self._commits:
                pending.enqueue()
            # In their order: whichever of them has to lead next, those before it have been answered.
            for pending in self._commits:
                pending.wait_or_lead()
        except BaseException:
            for pending in self._commits:
                pending.withdraw()
            raise
        return [pending.outcome_or_error() for pending in self._commits]

    async def wait(self) -> Sequence[A | Exception]:
        import asyncio

        answers = await asyncio.gather(*[pending.wait() for pending in self._commits], return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, Exception):
                raise answer
        return answers  # type: ignore[return-value]


# -- event loops ---------------------------------------------------------------------------------


ANSWERS_PER_TURN = 64  # given without waiting, a few microseconds each; a turn of the loop costs about as much as one


class _Answers(threading.local):
    """Given on this thread, and so on this event loop, since its other tasks could run."""

    given = 0


_answers = _Answers()


def should_yield() -> bool:
    """Count an answer that was given without waiting. True: it is time to let the loop's other tasks run."""
    _answers.given += 1
    if _answers.given < ANSWERS_PER_TURN:
        return False
    _answers.given = 0
    return True


async def yield_to_loop() -> None:
    """A cancellation may arrive here: the answer has been given, as on a store that takes a while."""
    from asyncio import sleep

    await sleep(0)


async def finish_despite_cancellation(pending: PendingCommit[Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Wait for the outcome of a write that is on its way, so that a cancelled caller can put it right."""
    import asyncio

    while not pending.answered:
        pending.future = loop.create_future()  # the cancellation has used up the one before
        with contextlib.suppress(asyncio.CancelledError):
            await pending.future


# -- answers -------------------------------------------------------------------------------------


def wake(commits: Iterable[PendingCommit[Any, Any]]) -> None:
    """Wake the callers of answered commits: each thread by its gate, each event loop once for all of its callers."""
    loops: dict[asyncio.AbstractEventLoop, list[PendingCommit[Any, Any]]] = {}
    for pending in commits:
        if pending.loop is None:
            pending.answered = True
            pending.resume()
        else:
            loops.setdefault(pending.loop, []).append(pending)
    for loop, mine in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is left
            loop.call_soon_threadsafe(_deliver, mine)


def _deliver(commits: list[PendingCommit[Any, Any]]) -> None:
    for pending in commits:
        pending.answered = True
        if not pending.future.done():
            pending.future.set_result(None)


def own_copy(error: BaseException) -> BaseException:
    """One error may answer many callers: a note that one adds ("the work was done") must not reach the others."""
    if not isinstance(error, StoreError):
        return error.with_traceback(None)
    kind = type(error)
    own = kind.__new__(kind, *error.args)  # not by `__init__`: a subclass of the user's may take other arguments
    own.__dict__.update({name: value for name, value in error.__dict__.items() if name != "__notes__"})
    own.__cause__ = error.__cause__
    return own


def unknown_outcome(interrupted_by: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The thread that was committing for this caller was interrupted ({interrupted_by}); "
        "the write may or may not have landed. Read before you try again.",
        unsure=True,
    )


def held_elsewhere(*, unsure: bool) -> StoreUnavailable:
    state = "the write may or may not have landed" if unsure else "nothing was written"
    return StoreUnavailable(
        f"Another transaction has held this space for too long; {state}. "
        "Look for a long-running transaction in the database, then try again.",
        unsure=unsure,
        held=True,
    )


# -- how many callers are active -----------------------------------------------------------------


SMALLEST_HALF = 8  # fewer are not worth a commit of their own


class CallerEstimate:
    """Estimates how many callers are active. For speed alone: callers do not sign off, and two threads may count at
    once. A wrong estimate makes a group too large or too small, never late or wrong.
    """

    def __init__(self) -> None:
        self._answered = 0  # callers of the last group
        self._away = 0  # of those and of earlier ones, how many have not come back

    def arrived(self) -> None:
        self._away -= 1

    def answered(self, count: int) -> None:
        """Callers idle for two commits decay out of the estimate."""
        idle = max(0, min(self._away, self._answered)) * 7 // 8
        self._answered, self._away = count, count + idle

    def half(self, waiting: int) -> int:
        active = waiting + max(0, self._away)
        return max(SMALLEST_HALF, (active + 1) // 2)
