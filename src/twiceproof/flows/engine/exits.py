"""Why a run stops, how it ends, and RunExit: the final write that leaves it in the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from ...claims.blobs.records import externalise
from ...claims.claim import DONE, FAILED, QUEUED, REVIEW, WAITING, Claim, Fault, body_of
from ...claims.policy import Policy
from ...claims.results import Packed, ResultType, pack
from ...claims.states import Lifetime, finish_times
from ...errors import Stale
from ...operations import Operation
from ...records import Address, Conflict, Insert, Replace, Write
from .ledger import UNKNOWN
from .run_dependencies import register_waiter, to_review, waits_in_a_circle, wake
from .run_states import MOST_CRASHES, with_work

if TYPE_CHECKING:
    from .session import Session

__all__ = [
    "End",
    "Ended",
    "Finished",
    "GiveBack",
    "HandedBack",
    "InterruptRequested",
    "Review",
    "Reviewed",
    "RunExit",
    "RunFailed",
    "Stop",
    "Superseded",
    "Suspended",
    "Undo",
    "Wait",
    "as_done",
    "as_failed",
    "as_queued",
    "as_review",
    "as_waiting",
    "merged",
]


End = Callable[[int], Replace]  # makes the run's final write, given the fence
SOON = 15 * 60.0  # seconds
EXIT_PAUSE = 60.0  # seconds before a run that was cut off by SystemExit, or too often, is taken again
FREE_INTERRUPTS = 3  # so many interrupted runs are taken again at once


# -- how a run ends here -------------------------------------------------------------------------


class Finished(Struct, frozen=True):
    """The flow returned this."""

    value: Any


class RunFailed(Struct, frozen=True):
    """The flow failed for good. `undone` says what happened to its completed steps."""

    error: BaseException
    undone: str = ""


class Suspended(Struct, frozen=True):
    """The run waits, and holds nothing."""

    why: str
    until: float | None


class Superseded(Struct, frozen=True):
    """The run is done without being applied: a newer version of its object was applied before."""

    error: Stale


class Reviewed(Struct, frozen=True):
    """A person must decide. `error`: what was raised, if that is the reason."""

    reason: str
    error: Exception | None = None


class HandedBack(Struct, frozen=True):
    """The process was told to stop: the next holder goes on with the run."""

    error: BaseException


Ended = Finished | RunFailed | Suspended | Superseded | Reviewed | HandedBack


# -- the writes that end it ----------------------------------------------------------------------


def as_done(at: Address, claim: Claim, packed: Packed, life: Lifetime) -> End:
    queue, due_in, keep = finish_times(DONE, life)
    body = body_of(structs.replace(claim, result=packed.inline, spill=packed.spill, keep=keep))
    return lambda fence: Replace(at, body, DONE, fence=fence, draw=True, queue=queue, due_in=due_in)


def as_failed(at: Address, claim: Claim, fault: Fault, life: Lifetime) -> End:
    queue, due_in, _ = finish_times(FAILED, life)
    body = body_of(structs.replace(claim, fault=fault))
    return lambda fence: Replace(at, body, FAILED, fence=fence, draw=True, queue=queue, due_in=due_in)


def as_review(at: Address, claim: Claim, reason: str) -> End:
    body = body_of(structs.replace(claim, reason=reason))
    return lambda fence: Replace(at, body, REVIEW, fence=fence, draw=True)


def as_waiting(at: Address, claim: Claim, why: str, queue: str, seconds: float | None) -> End:
    body = body_of(structs.replace(claim, reason=why))
    return lambda fence: Replace(at, body, WAITING, fence=fence, draw=True, queue=queue, due_in=seconds)


def as_queued(at: Address, claim: Claim, queue: str, delay: float = 0.0) -> End:
    body = body_of(claim)
    return lambda fence: Replace(at, body, QUEUED, fence=fence, draw=True, queue=queue, due_in=delay)


# -- why a run stops -----------------------------------------------------------------------------


class Wait(Struct, frozen=True):
    """Suspend the run for `seconds` (None: until something arrives).

    `unless` are writes that must succeed with the suspension, so that a callback that has just arrived is not missed.
    `runs` are the runs that it waits for: they are checked once more after it is suspended.
    """

    why: str
    seconds: float | None
    unless: Sequence[Write] = ()
    runs: tuple[str, ...] = ()


class Review(Struct, frozen=True):
    """Leave the run to a person, who decides about it or about the `runs` that it called."""

    reason: str
    runs: tuple[str, ...] = ()
    error: Exception | None = None  # what was raised, if that is the reason


class Undo(Struct, frozen=True):
    """A stop was requested: undo the completed steps, and end."""


class GiveBack(Struct, frozen=True):
    """The worker is stopping: the next holder goes on with the next step."""


Stop = Wait | Review | Undo | GiveBack


def merged(stops: Sequence[Stop]) -> Stop:
    """Combine the reasons for which the branches of a run stopped.

    Branches that can continue soon do so before the run waits for a person: one unknown outcome must not block the
    others.
    """
    for kind in (Undo, GiveBack):
        if any(isinstance(stop, kind) for stop in stops):
            return kind()
    waits = sorted((stop for stop in stops if isinstance(stop, Wait)), key=_when)
    reviews = [stop for stop in stops if isinstance(stop, Review)]
    if reviews and not (waits and _when(waits[0]) <= SOON):
        return Review(reviews[0].reason + _more(len(reviews)), reviews[0].runs, reviews[0].error)
    unless = {write.at: write for wait in waits for write in wait.unless}
    runs = tuple(run for wait in waits for run in wait.runs)
    why = next((wait.why for wait in waits if wait.runs), waits[0].why)  # a run that ends wakes it by this text
    return Wait(why + _more(len(waits)), waits[0].seconds, tuple(unless.values()), runs)


def _when(wait: Wait) -> float:
    return float("inf") if wait.seconds is None else wait.seconds


def _more(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""


# -- leaving -------------------------------------------------------------------------------------


class InterruptRequested(Exception):
    """The fence was changed to interrupt the run while it was being left: that request must not be overwritten."""


class RunExit:
    """Writes how a run leaves this process. Each write is made only while its claim is still ours."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def complete(self, policy: Policy, results: ResultType, value: Any) -> Operation[Finished]:
        session, held = self._session, self._session.hold.held
        packed = pack(value, held, large=policy.large, most=session.runtime.claims.value_limit)
        claim = session.claim if results.fits(packed) else structs.replace(session.claim, mistyped=True)
        _, due_in, _ = finish_times(DONE, policy.life)
        pieces: Sequence[Insert] = packed.writes(session.space, due_in)
        if pieces:
            pieces = yield from externalise(session.runtime.claims.blobs, pieces)
        yield from self._write(as_done(held.at, claim, packed, policy.life), *pieces)
        results.warn_if_lossy(value, packed)
        text = packed.inline or packed.text
        return Finished(results.restore(text, loose=True) if text else value)

    def fail(self, policy: Policy, fault: Fault) -> Operation[None]:
        """Record the failure. A change that interrupts it is kept: runs that wait for this one are in the claim."""
        session = self._session
        while True:
            claim = self._claim(crash_unresolved=session.crashed)
            try:
                yield from self._write(as_failed(session.hold.held.at, claim, fault, policy.life))
            except InterruptRequested:
                yield from session.reload_after_interrupt()
            else:
                return

    def suspend(self) -> Operation[Ended]:
        """Leave the run as its stop says: waiting, queued, or in review."""
        session, stop = self._session, self._session.stop
        at, queue = session.hold.held.at, session.hold.held.queue
        claim = self._claim(crash_unresolved=session.crashed)
        if isinstance(stop, Wait):
            return (yield from self._wait(claim, stop))
        if isinstance(stop, GiveBack):
            yield from self._write(as_queued(at, claim, queue))
            return Suspended("given back between steps: this worker is stopping", session.ledger.now())
        reason = stop.reason if isinstance(stop, Review) else "it stopped without a reason"
        yield from self._write(as_review(at, claim, reason))
        error = stop.error if isinstance(stop, Review) else None
        return (yield from self._unless_ended(stop, Reviewed(reason, error)))

    def _wait(self, claim: Claim, stop: Wait) -> Operation[Ended]:
        session = self._session
        at, queue = session.hold.held.at, session.hold.held.queue
        until = None if stop.seconds is None else session.ledger.now() + stop.seconds
        if session.work.awaits != stop.runs:
            claim = with_work(claim, awaits=stop.runs)
        refused = yield from self._write(as_waiting(at, claim, stop.why, queue, stop.seconds), *stop.unless)
        if refused is None:
            return (yield from self._unless_ended(stop, Suspended(stop.why, until)))
        yield from self._write(as_queued(at, claim, queue))  # the awaited event has arrived meanwhile
        return Suspended("goes on at once", session.ledger.now())

    def _unless_ended(self, stop: Stop | None, ended: Ended) -> Operation[Ended]:
        """Register with the runs that it waits for. One that ended meanwhile found no waiter to wake."""
        if not isinstance(stop, Wait | Review) or not stop.runs:
            return ended
        session, store = self._session, self._session.runtime.store
        over = (DONE, FAILED, REVIEW) if isinstance(stop, Wait) else (DONE, FAILED)
        for run in stop.runs:
            if not (yield from register_waiter(store, run, session.claim.run, over)):
                yield from wake(store, session.claim.run)
                return Suspended("goes on at once", session.ledger.now())
        if isinstance(stop, Wait) and (yield from waits_in_a_circle(store, stop.runs, session.claim.run)):
            reason = (
                f"it {stop.why}, which waits for it in turn: none of them can end. Abandon one, and call it otherwise"
            )
            return Reviewed(reason) if (yield from to_review(store, session.claim.run, reason)) else ended
        return ended

    def hand_back(self, error: BaseException) -> Operation[Ended]:
        """The process was told to stop. Unknown outcomes go to a person; any other run to the next holder."""
        while True:
            try:
                return (yield from self._hand_back(error))
            except InterruptRequested:
                yield from self._session.reload_after_interrupt()

    def _hand_back(self, error: BaseException) -> Operation[Ended]:
        session, held = self._session, self._session.hold.held
        interrupts = session.work.crashes + 1
        # What was under way may have left no trace.
        claim = with_work(session.claim, crashes=interrupts, crash_unresolved=True)
        unknown = [entry.name for entry in session.ledger.entries.values() if entry.state == UNKNOWN]
        reason = ""
        if unknown:
            reason = f"{type(error).__name__} while {', '.join(unknown)} ran: whether it was done is unknown"
        elif interrupts > MOST_CRASHES:
            reason = f"it was interrupted {interrupts} times, by {type(error).__name__} at last"
        if reason:
            yield from self._write(as_review(held.at, claim, reason))
            return Reviewed(reason)
        # A run that interrupts its own process must not be taken again at once, and not for ever.
        pause = EXIT_PAUSE if isinstance(error, SystemExit) or interrupts > FREE_INTERRUPTS else 0.0
        yield from self._write(as_queued(held.at, claim, held.queue, pause))
        return Suspended(f"was cut off by {type(error).__name__}", session.ledger.now() + pause)

    def _claim(self, *, crash_unresolved: bool) -> Claim:
        """The claim as the next holder finds it."""
        session = self._session
        if session.work.crash_unresolved == crash_unresolved:
            return session.claim
        return with_work(session.claim, crash_unresolved=crash_unresolved)

    def _write(self, end: End, *unless: Write) -> Operation[Conflict | None]:
        """Make the run's final write here, with everything that is pending in its ledger."""
        session, hold = self._session, self._session.hold

        def checked(fence: int) -> Replace:
            if session.ledger.interrupted:
                raise InterruptRequested
            return end(fence)

        hold.ending = True  # while an event loop is blocked, the write may land long before its answer is received
        try:
            refused = yield from session.ledger.flush(*unless, end=checked)
        except BaseException:
            hold.ending = False
            raise
        hold.ending = refused is None
        return refused
