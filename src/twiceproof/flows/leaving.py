"""Leaving a run: it ends, lies down, or is given back. A word to stop that comes meanwhile is not lost."""

from __future__ import annotations

from ..claims.claim import DONE, FAILED, REVIEW, Claim
from ..drive import Operation, await_
from ..records import Conflict, Replace, Write
from .ending import Asleep, End, Ended, Reviewed, as_queued, as_review, as_waiting
from .entry import UNKNOWN
from .run_states import MOST_CRASHES
from .session import Session
from .stop import NOT_AWAITED, GiveBack, Review, Stop, Wait
from .waiters import awaits, to_review, waits_in_a_circle, wake
from .work import with_work, work_of

__all__ = ["Beckoned", "give_back", "last", "left", "lie_down", "refuse_forgotten"]

EXIT_PAUSE = 60.0
MOST_NAMED = 5
FREE_INTERRUPTS = 3  # so many come round at once


class Beckoned(Exception):
    """Somebody said stop as the run was left: that word must not be written over."""


def lie_down(session: Session) -> Operation[Ended]:
    at, queue, stop = session.hold.held.at, session.hold.held.queue, session.stop
    claim = left(session, adrift=session.crashed)
    if isinstance(stop, Wait):
        until = None if stop.seconds is None else session.ledger.now() + stop.seconds
        if session.work.awaits != stop.runs:
            claim = with_work(claim, awaits=stop.runs)
        refused = yield from last(session, as_waiting(at, claim, stop.why, queue, stop.seconds), *stop.unless)
        if refused is None:
            return (yield from _unless_ended(session, stop, Asleep(stop.why, until)))
        yield from last(session, as_queued(at, claim, queue))  # it came meanwhile
        return Asleep("goes on at once", session.ledger.now())
    if isinstance(stop, GiveBack):
        yield from last(session, as_queued(at, claim, queue))
        return Asleep("given back between steps: this worker is stopping", session.ledger.now())
    reason = stop.reason if isinstance(stop, Review) else "it stopped without a reason"
    yield from last(session, as_review(at, claim, reason))
    error = stop.error if isinstance(stop, Review) else None
    return (yield from _unless_ended(session, stop, Reviewed(reason, error)))


def _unless_ended(session: Session, stop: Stop | None, ended: Ended) -> Operation[Ended]:
    """Leaves word with those that it waits for. One that ended meanwhile found nobody to wake."""
    if not isinstance(stop, Wait | Review) or not stop.runs:
        return ended
    store, over = session.parts.store, (DONE, FAILED, REVIEW) if isinstance(stop, Wait) else (DONE, FAILED)
    for run in stop.runs:
        if not (yield from awaits(store, run, session.claim.run, over)):
            yield from wake(store, session.claim.run)
            return Asleep("goes on at once", session.ledger.now())
    if isinstance(stop, Wait) and (yield from waits_in_a_circle(store, stop.runs, session.claim.run)):
        reason = f"it {stop.why}, which waits for it in turn: none of them can end. Abandon one, and call it otherwise"
        return Reviewed(reason) if (yield from to_review(store, session.claim.run, reason)) else ended
    return ended


def last(session: Session, end: End, *unless: Write) -> Operation[Conflict | None]:
    """The run's last write here, made of its claim as we know it."""

    def checked(fence: int) -> Replace:
        if session.ledger.beckoned:
            raise Beckoned
        return end(fence)

    hold = session.hold
    hold.ending = True  # on a loop that is blocked it may be there long before we hear of it
    try:
        refused = yield from session.ledger.flush(*unless, end=checked)
    except BaseException:
        hold.ending = False
        raise
    hold.ending = refused is None
    return refused


def refuse_forgotten(session: Session) -> None:
    """Before a run is done: what its function called and did not wait for is not done."""
    forgotten, going_on = session.created.forgotten(), session.under_way
    if forgotten:
        names = dict.fromkeys([*session.work.unawaited, *(name for made in forgotten for name in made.names)])
        session.claim = with_work(session.claim, unawaited=tuple(names))
        session.work = work_of(session.claim)
        session.halt(Review(f"{_listed([str(made) for made in forgotten])} {NOT_AWAITED}: {_advice(session)}"))
    if going_on:
        session.halt(Review(f"{_listed(going_on)} {NOT_AWAITED} to its end: wait for tasks and threads in the flow"))


def _advice(session: Session) -> str:
    return "write await before it" if session.drive is await_ else "make the flow an `async def`, and await it there"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def left(session: Session, *, adrift: bool) -> Claim:
    """The claim as whoever comes next finds it."""
    return session.claim if session.work.adrift == adrift else with_work(session.claim, adrift=adrift)


def give_back(session: Session, error: BaseException) -> Operation[Ended]:
    """What became of the run."""
    while True:
        try:
            return (yield from _given_back(session, error))
        except Beckoned:
            yield from session.heed()


def _given_back(session: Session, error: BaseException) -> Operation[Ended]:
    """The process is told to stop. Unknown outcomes go to a person; everything else to whoever comes next."""
    at, interrupts = session.hold.held.at, session.work.crashes + 1
    claim = with_work(session.claim, crashes=interrupts, adrift=True)  # what was under way may have left no trace
    unknown = [entry.name for entry in session.ledger.entries.values() if entry.state == UNKNOWN]
    if unknown:
        reason = f"{type(error).__name__} while {', '.join(unknown)} ran: whether it was done is unknown"
        return (yield from _parked(session, claim, reason))
    if interrupts > MOST_CRASHES:
        reason = f"whoever took it was stopped, {interrupts} times now, by {type(error).__name__} at last"
        return (yield from _parked(session, claim, reason))
    # One that interrupts itself would come round for ever: ever more slowly, and not for ever.
    pause = EXIT_PAUSE if isinstance(error, SystemExit) or interrupts > FREE_INTERRUPTS else 0.0
    yield from last(session, as_queued(at, claim, session.hold.held.queue, pause))
    return Asleep(f"was cut off by {type(error).__name__}", session.ledger.now() + pause)


def _parked(session: Session, claim: Claim, reason: str) -> Operation[Ended]:
    yield from last(session, as_review(session.hold.held.at, claim, reason))
    return Reviewed(reason)
