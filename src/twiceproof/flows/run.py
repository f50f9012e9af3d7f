"""Runs a flow's function under its claim, to its end or to where it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from msgspec import structs

from ..claims.claim import DONE, HELD, Claim, Fault
from ..claims.hold import INHERITED, Hold
from ..claims.policy import Policy
from ..claims.refusals import inherited
from ..claims.results import ResultType, pack
from ..claims.shelving import placed
from ..claims.states import finish_times
from ..claims.verdict import fault_of
from ..drive import Call, Operation, Raised, Returned
from ..errors import Cancelled, ClaimLost, Misuse, StepFailed, StoreError, WaitSwallowed
from ..records import Remove
from .context import Unwind, attempt_var, is_interrupt, session_var
from .ending import Ended, Fell, Finished, GivenBack, Reviewed, as_done, as_failed, as_review
from .entry import FAILED, tried_anew
from .leaving import Beckoned, give_back, last, left, lie_down, refuse_forgotten
from .mistakes import is_mistake, mistake_text
from .parts import Parts
from .run_states import FRESH
from .session import Drive, Newer, Session
from .stop import BROKE, NOT_UNDONE, Review, Undo
from .undo import Undone, undo_all
from .work import Work, work_of

__all__ = ["Taken", "cancelled", "refuse_run", "run_flow"]


class Taken:
    """A run that is ours, as it was found."""

    __slots__ = ("before", "claim", "drive", "hold", "newer", "patience", "slots", "work")

    def __init__(self, hold: Hold, claim: Claim, before: str, patience: float, drive: Drive) -> None:
        self.drive = drive
        self.hold = hold
        self.claim = claim
        self.work = work_of(claim)
        self.before = before
        self.patience = patience
        self.slots: Sequence[Hold] = ()
        self.newer: Newer | None = None

    @property
    def crashed(self) -> bool:
        """Whether its holder before stopped without a word."""
        return self.before == HELD or self.work.adrift


def run_flow(
    parts: Parts, taken: Taken, policy: Policy, results: ResultType, body: Callable[[], Any]
) -> Operation[Ended]:  # fmt: skip
    session = Session(
        parts, taken.hold, taken.claim, taken.work, crashed=taken.crashed, patience=taken.patience, drive=taken.drive
    )  # fmt: skip
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
    if before == FAILED:
        _try_failures_again(session)


def _try_failures_again(session: Session) -> None:
    """By a person's word: what failed is tried anew, what is done stays done."""
    for entry in list(session.ledger.entries.values()):
        if entry.state == FAILED:
            session.ledger.note(tried_anew(entry))  # on record: a run that stops before it gets there must not forget


def _call(session: Session, body: Callable[[], Any]) -> Operation[Returned | Raised]:
    inside, step = session_var.set(session), attempt_var.set(None)  # a run that a step starts is not part of it
    try:
        finding: Returned | Raised = yield Call(body)
    finally:
        attempt_var.reset(step)
        session_var.reset(inside)
    return finding


def _finish(
    session: Session, policy: Policy, results: ResultType, finding: Returned | Raised
) -> Operation[Ended]:  # fmt: skip
    """A stop counts for more than what the function made of it."""
    if session.hold.lost is INHERITED:
        raise _of_a_child(session, finding)
    try:
        _raise_what_is_out_of_reach(session, finding)
        if session.stop is None and session.cut is not None and not _is_interrupted(finding):
            return (yield from give_back(session, session.cut))  # swallowed: nobody stops, but the run does
        if session.stop is None and isinstance(finding, Returned) and not session.undoing:
            refuse_forgotten(session)
            if session.unvisited:
                gone = ", ".join(sorted(session.unvisited))
                session.halt(Review(f"the flow changed under this run: it no longer calls {gone}, in the ledger"))
            return (yield from _end(session, policy, results, finding.value))
        if session.stop is None and isinstance(finding, Raised) and not isinstance(finding.error, Exception):
            yield from give_back(session, finding.error)
            return GivenBack(finding.error)
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
        except Beckoned:
            yield from session.heed()
    return (yield from _fail(session, policy, Misuse("it was being undone")))


def _complete(session: Session, policy: Policy, results: ResultType, value: Any) -> Operation[Finished]:
    held = session.hold.held
    packed = pack(value, held, large=policy.large, most=session.parts.claims.room)
    claim = session.claim if results.fits(packed) else structs.replace(session.claim, unfit=True)
    _, due_in, _ = finish_times(DONE, policy.life)
    pieces = yield from placed(session.parts.claims.shelf, packed.writes(session.space, due_in))
    yield from last(session, as_done(held.at, claim, packed, policy.life), *pieces)
    results.mind(value, packed)
    text = packed.inline or packed.text
    return Finished(results.restore(text, loose=True) if text else value)


def _fail(session: Session, policy: Policy, error: BaseException) -> Operation[Fell]:
    """Undo what was done, then say that it failed. A stop in between is a stop."""
    undone = yield from _undo(session)
    if session.work.undoing:
        error = cancelled(session.work)
    yield from _say_failed(session, policy, _fault(error))
    return Fell(error, str(undone))


def _say_failed(session: Session, policy: Policy, fault: Fault) -> Operation[None]:
    """Whatever word came meanwhile is in the claim that is left: who waits for this run is to be woken."""
    while True:
        claim = left(session, adrift=session.crashed)
        try:
            yield from last(session, as_failed(session.hold.held.at, claim, fault, policy.life))
        except Beckoned:
            yield from session.heed()
        else:
            return


def cancelled(work: Work) -> Cancelled:
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
            return (yield from lie_down(session))
        except Beckoned:
            yield from session.heed()
        try:
            if session.is_to_be_undone and not isinstance(session.stop, Review):
                return (yield from _fail(session, policy, Misuse("it was being undone")))
        except Unwind:
            pass  # undoing came to a stop itself


def refuse_run(parts: Parts, taken: Taken, policy: Policy, error: Exception) -> Operation[Ended]:
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
    return Fell(error)
