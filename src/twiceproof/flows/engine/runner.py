"""Runs the function under its claim and writes how it left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from msgspec import structs

from ...claims.blobs.records import externalise
from ...claims.claim import DONE, FAILED, HELD, REVIEW, Claim, Fault
from ...claims.error_classification import fault_of
from ...claims.error_messages import inherited
from ...claims.held_claim import INHERITED, HeldClaim
from ...claims.policy import Policy
from ...claims.results import ResultType, pack
from ...claims.states import finish_times
from ...errors import Cancelled, ClaimLost, Misuse, StepFailed, StoreError, WaitSwallowed
from ...operations import Operation, Raised, Returned, UserCall, await_
from ...records import Conflict, Remove, Replace, Write
from ..runtime import Runtime
from .compensation import Undone, undo_all
from .context import Unwind, attempt_var, is_interrupt, session_var
from .exits import (
    BROKE,
    NOT_AWAITED,
    NOT_UNDONE,
    End,
    Ended,
    Finished,
    GiveBack,
    HandedBack,
    Review,
    Reviewed,
    RunFailed,
    Stop,
    Suspended,
    Undo,
    Wait,
    as_done,
    as_failed,
    as_queued,
    as_review,
    as_waiting,
)
from .ledger import STEP_FAILED, UNKNOWN, tried_anew
from .run_dependencies import awaits, to_review, waits_in_a_circle, wake
from .run_states import FRESH, MOST_CRASHES, RunState, with_work, work_of
from .session import Drive, Newer, Session
from .step_errors import is_mistake, mistake_text

__all__ = [
    "InterruptRequested",
    "TakenRun",
    "cancelled",
    "claim_to_leave",
    "final_write",
    "hand_back",
    "refuse_forgotten",
    "refuse_run",
    "run_flow",
    "suspend",
]


EXIT_PAUSE = 60.0
MOST_NAMED = 5
FREE_INTERRUPTS = 3  # so many come round at once


class InterruptRequested(Exception):
    """Somebody said stop as the run was left: that word must not be written over."""


def suspend(session: Session) -> Operation[Ended]:
    at, queue, stop = session.hold.held.at, session.hold.held.queue, session.stop
    claim = claim_to_leave(session, adrift=session.crashed)
    if isinstance(stop, Wait):
        until = None if stop.seconds is None else session.ledger.now() + stop.seconds
        if session.work.awaits != stop.runs:
            claim = with_work(claim, awaits=stop.runs)
        refused = yield from final_write(session, as_waiting(at, claim, stop.why, queue, stop.seconds), *stop.unless)
        if refused is None:
            return (yield from _unless_ended(session, stop, Suspended(stop.why, until)))
        yield from final_write(session, as_queued(at, claim, queue))  # it came meanwhile
        return Suspended("goes on at once", session.ledger.now())
    if isinstance(stop, GiveBack):
        yield from final_write(session, as_queued(at, claim, queue))
        return Suspended("given back between steps: this worker is stopping", session.ledger.now())
    reason = stop.reason if isinstance(stop, Review) else "it stopped without a reason"
    yield from final_write(session, as_review(at, claim, reason))
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
            return Suspended("goes on at once", session.ledger.now())
    if isinstance(stop, Wait) and (yield from waits_in_a_circle(store, stop.runs, session.claim.run)):
        reason = f"it {stop.why}, which waits for it in turn: none of them can end. Abandon one, and call it otherwise"
        return Reviewed(reason) if (yield from to_review(store, session.claim.run, reason)) else ended
    return ended


def final_write(session: Session, end: End, *unless: Write) -> Operation[Conflict | None]:
    """The run's last write here, made of its claim as we know it."""

    def checked(fence: int) -> Replace:
        if session.ledger.beckoned:
            raise InterruptRequested
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


def claim_to_leave(session: Session, *, adrift: bool) -> Claim:
    """The claim as whoever comes next finds it."""
    return session.claim if session.work.adrift == adrift else with_work(session.claim, adrift=adrift)


def hand_back(session: Session, error: BaseException) -> Operation[Ended]:
    """What became of the run."""
    while True:
        try:
            return (yield from _given_back(session, error))
        except InterruptRequested:
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
    yield from final_write(session, as_queued(at, claim, session.hold.held.queue, pause))
    return Suspended(f"was cut off by {type(error).__name__}", session.ledger.now() + pause)


def _parked(session: Session, claim: Claim, reason: str) -> Operation[Ended]:
    yield from final_write(session, as_review(session.hold.held.at, claim, reason))
    return Reviewed(reason)


class TakenRun:
    """A run that is ours, as it was found."""

    __slots__ = ("before", "claim", "drive", "hold", "newer", "patience", "slots", "work")

    def __init__(self, hold: HeldClaim, claim: Claim, before: str, patience: float, drive: Drive) -> None:
        self.drive = drive
        self.hold = hold
        self.claim = claim
        self.work = work_of(claim)
        self.before = before
        self.patience = patience
        self.slots: Sequence[HeldClaim] = ()
        self.newer: Newer | None = None

    @property
    def crashed(self) -> bool:
        """Whether its holder before stopped without a word."""
        return self.before == HELD or self.work.adrift


def run_flow(
    parts: Runtime, taken: TakenRun, policy: Policy, results: ResultType, body: Callable[[], Any]
) -> Operation[Ended]:
    session = Session(
        parts, taken.hold, taken.claim, taken.work, crashed=taken.crashed, patience=taken.patience, drive=taken.drive
    )
    session.slots, session.newer = taken.slots, taken.newer
    outer = session_var.get()
    if outer is not None and outer.open:
        session.callers |= outer.callers
    parts.heartbeat.keep(taken.hold)
    try:
        yield from _prepare(session, taken.before)
        finding = yield from _call(session, body)
        return (yield from _finish(session, policy, results, finding))
    finally:
        session.open = False
        taken.work = session.work  # who came to wait for it meanwhile is in there
        parts.heartbeat.drop(taken.hold)


def _prepare(session: Session, before: str) -> Operation[None]:
    """A rerun reads the ledger once; a fresh run has none."""
    session.ledger.hear(session.hold.held.taken_at)
    session.started_at = session.work.since if session.crashed else session.hold.held.taken_at
    if before == FRESH:
        return
    session.lapsed_at = session.hold.held.taken_at if before == HELD else 0.0
    yield from session.load()
    if before == STEP_FAILED:
        _try_failures_again(session)


def _try_failures_again(session: Session) -> None:
    """By a person's word: what failed is tried anew, what is done stays done."""
    for entry in list(session.ledger.entries.values()):
        if entry.state == STEP_FAILED:
            session.ledger.note(tried_anew(entry))  # on record: a run that stops before it gets there must not forget


def _call(session: Session, body: Callable[[], Any]) -> Operation[Returned | Raised]:
    inside, step = session_var.set(session), attempt_var.set(None)  # a run that a step starts is not part of it
    try:
        finding: Returned | Raised = yield UserCall(body)
    finally:
        attempt_var.reset(step)
        session_var.reset(inside)
    return finding


def _finish(session: Session, policy: Policy, results: ResultType, finding: Returned | Raised) -> Operation[Ended]:
    """A stop counts for more than what the function made of it."""
    if session.hold.lost is INHERITED:
        raise _of_a_child(session, finding)
    try:
        _raise_what_is_out_of_reach(session, finding)
        if session.stop is None and session.cut is not None and not _is_interrupted(finding):
            return (yield from hand_back(session, session.cut))  # swallowed: nobody stops, but the run does
        if session.stop is None and isinstance(finding, Returned) and not session.undoing:
            refuse_forgotten(session)
            if session.unvisited:
                gone = ", ".join(sorted(session.unvisited))
                session.halt(Review(f"the flow changed under this run: it no longer calls {gone}, in the ledger"))
            return (yield from _end(session, policy, results, finding.value))
        if session.stop is None and isinstance(finding, Raised) and not isinstance(finding.error, Exception):
            yield from hand_back(session, finding.error)
            return HandedBack(finding.error)
        if isinstance(finding, Raised) and isinstance(finding.error, WaitSwallowed):
            session.halt(Review(str(finding.error)))
        if session.stop is None and not session.undoing and isinstance(finding, Raised) and is_mistake(finding.error):
            _park_mistake(session, finding.error)
        if session.stop is None or isinstance(session.stop, Undo):
            return (yield from _fail(session, policy, _error_of(finding)))
    except Unwind:
        pass
    return (yield from _stop(session, policy))


def _park_mistake(session: Session, error: BaseException) -> NoReturn:
    """A deployment that broke the function's own code must not undo what was done: a fix, and the run goes on."""
    own = error if isinstance(error, Exception) else None
    session.halt(Review(BROKE + mistake_text(error), error=own))


def _raise_what_is_out_of_reach(session: Session, finding: Returned | Raised) -> None:
    """The store, or the claim: nothing can be written. Also if the function swallowed it, unless it is told to stop."""
    error = finding.error if isinstance(finding, Raised) else None
    if isinstance(error, ClaimLost | StoreError):
        raise error
    if isinstance(session.cut, ClaimLost | StoreError) and not _is_interrupted(finding):
        raise session.cut


def _is_interrupted(finding: Returned | Raised) -> bool:
    return isinstance(finding, Raised) and is_interrupt(finding.error)


def _of_a_child(session: Session, finding: Returned | Raised) -> BaseException:
    """A forked child that comes out of its parent's run: it may end as it likes, and has no part in the run's end."""
    if isinstance(finding, Raised) and not isinstance(finding.error, Unwind):
        return finding.error
    return inherited(session.hold)


def _error_of(finding: Returned | Raised) -> BaseException:
    if isinstance(finding, Raised) and not isinstance(finding.error, Unwind):
        return finding.error
    return Misuse("it was being undone")


def _end(session: Session, policy: Policy, results: ResultType, value: Any) -> Operation[Ended]:
    """Done, unless somebody says stop just then: what its last step did is undone, too."""
    while not session.undoing:
        try:
            return (yield from _complete(session, policy, results, value))
        except InterruptRequested:
            yield from session.heed()
    return (yield from _fail(session, policy, Misuse("it was being undone")))


def _complete(session: Session, policy: Policy, results: ResultType, value: Any) -> Operation[Finished]:
    held = session.hold.held
    packed = pack(value, held, large=policy.large, most=session.parts.claims.room)
    claim = session.claim if results.fits(packed) else structs.replace(session.claim, unfit=True)
    _, due_in, _ = finish_times(DONE, policy.life)
    pieces = yield from externalise(session.parts.claims.shelf, packed.writes(session.space, due_in))
    yield from final_write(session, as_done(held.at, claim, packed, policy.life), *pieces)
    results.mind(value, packed)
    text = packed.inline or packed.text
    return Finished(results.restore(text, loose=True) if text else value)


def _fail(session: Session, policy: Policy, error: BaseException) -> Operation[RunFailed]:
    """Undo what was done, then say that it failed. A stop in between is a stop."""
    undone = yield from _undo(session)
    if session.work.undoing:
        error = cancelled(session.work)
    yield from _say_failed(session, policy, _fault(error))
    return RunFailed(error, str(undone))


def _say_failed(session: Session, policy: Policy, fault: Fault) -> Operation[None]:
    """Whatever word came meanwhile is in the claim that is left: who waits for this run is to be woken."""
    while True:
        claim = claim_to_leave(session, adrift=session.crashed)
        try:
            yield from final_write(session, as_failed(session.hold.held.at, claim, fault, policy.life))
        except InterruptRequested:
            yield from session.heed()
        else:
            return


def cancelled(work: RunState) -> Cancelled:
    return Cancelled(f"{work.undoing} by {work.by or 'somebody'}", by=work.by)


def _undo(session: Session) -> Operation[Undone]:
    """One that cannot even be begun is for a person: left held, the run would lapse and come round for ever."""
    try:
        return (yield from undo_all(session))
    except (ClaimLost, StoreError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, what was done is still there
        session.halt(Review(f"{NOT_UNDONE}: {fault_of(error).type}: {fault_of(error).message}"))


def _fault(error: BaseException) -> Fault:
    """What is remembered of it: the step's own error, not that it was in a step."""
    if isinstance(error, StepFailed):
        fault = error.data["fault"]
        return Fault(fault.type, f"{error.data['step']}: {fault.message}")
    return fault_of(error)


def _stop(session: Session, policy: Policy) -> Operation[Ended]:
    """Lie down, unless somebody says stop just then: nothing is worth waiting for any more."""
    while True:
        try:
            return (yield from suspend(session))
        except InterruptRequested:
            yield from session.heed()
        try:
            if session.is_to_be_undone and not isinstance(session.stop, Review):
                return (yield from _fail(session, policy, Misuse("it was being undone")))
        except Unwind:
            pass  # undoing came to a stop itself


def refuse_run(parts: Runtime, taken: TakenRun, policy: Policy, error: Exception) -> Operation[Ended]:
    """Its input cannot be read. Left held, it would lapse and come round for ever."""
    held, claim = taken.hold.held, taken.claim
    if taken.before == FRESH:
        yield from parts.store.write(Remove(held.at, fence=held.fence))
    elif claim.attempt <= 1:  # queued, and never begun
        yield from parts.store.write(as_failed(held.at, claim, fault_of(error), policy.life)(held.fence))
    else:
        reason = f"its input cannot be read: {error}"
        yield from parts.store.write(as_review(held.at, claim, reason)(held.fence))
        return Reviewed(reason)
    return RunFailed(error)
