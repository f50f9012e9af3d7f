"""What follows from an attempt that raised."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from msgspec import structs

from ...claims.claim import HELD, QUEUED, REVIEW, WAITING, Fault
from ...claims.error_classification import fault_of, retry_after
from ...claims.run_ids import shown_run
from ...errors import (
    Duplicate,
    InProgress,
    Misuse,
    NeedsReview,
    PayloadMismatch,
    PriorFailure,
    ResultNotKept,
    Stale,
    StepFailed,
    Waiting,
)
from ...operations import Operation
from ..repeat import SAFE
from ..step import StepCall
from .context import Unwind
from .decisions import Later, NeedsPerson, Refuse, on_error
from .exits import INNER_REVIEW, WAITS_FOR_RUN, Review, Undo, Wait
from .ledger import RETRY, STARTED, STEP_FAILED, UNKNOWN, Entry, EntryNote
from .step_identity import has_id

if TYPE_CHECKING:
    from .session import Session

__all__ = [
    "failed_before",
    "handle_error",
    "is_mistake",
    "mistake_text",
    "park",
    "refuse_if_undoing",
    "step_failed",
    "take_back",
]


LONGEST_LOOK = 300.0  # a run that waits for another looks after it this often, should nobody wake it
UNDER_WAY = (QUEUED, WAITING, HELD, REVIEW)
OVERDUE_LOOK = 5.0  # and after one that is due and left lying, or it would go round and round
ANSWERS = (PriorFailure, PayloadMismatch, Stale, Duplicate, ResultNotKept)
Inner = Waiting | NeedsReview | InProgress  # what a call of another run raises that is not at its end


def handle_error(session: Session, calling: StepCall, note: EntryNote, error: BaseException) -> Operation[None]:
    """Say what an error means, and write it down."""
    if isinstance(error, Unwind):
        raise error
    circle = _circle(session, calling, error)
    if circle is None and isinstance(error, Waiting | NeedsReview) and calling.step.plan.repeat is SAFE:
        _wait_for_inner(session, calling, note, error)
    error = circle or error
    now = session.ledger.now()
    plan, first = calling.step.plan, note.first_at or session.last_time()
    verdict = session.parts.verdicts.judge(error, plan.not_done)
    doubt, untold = note.doubt or verdict == "ambiguous", note.untold or verdict == "other"
    final = verdict == "final" or plan.retry.gives_up_on(error)
    move = on_error(
        plan,
        note.starts,
        first,
        verdict,
        now,
        asked=retry_after(error, now),
        roll=session.parts.roll,
        doubt=doubt,
        untold=untold,
        final=final,
    )
    if circle is not None or _is_final(calling, error):
        move = Refuse()
    if _is_at_work(error, calling) and isinstance(move, Later) and move.seconds > session.patience:
        _wait_for_inner(session, calling, note, error)  # what is over sooner is not worth lying down for
    fault = fault_of(error, retryable=verdict == "clean")
    note = structs.replace(note, fault=fault, first_at=first, doubt=doubt, untold=untold, final=final)
    if isinstance(move, NeedsPerson):
        session.finished(calling.name, UNKNOWN, structs.replace(note, reason=move.reason))
        if isinstance(error, Exception):
            session.halt(Review(f"{calling.name}: {move.reason} ({fault.type}: {fault.message})", error=error))
        raise error
    if not isinstance(error, Exception):
        if isinstance(move, Later) and move.state == STARTED:
            _record_wait(session, calling, note, move, now)  # or whoever takes over would look too early
        raise error  # the process is told to stop: whoever takes over decides by what is on record
    if isinstance(move, Refuse):
        session.finished(calling.name, STEP_FAILED, note)
        raise step_failed(session, calling.name, fault) from error
    _record_wait(session, calling, note, move, now)
    yield from session.ledger.flush()
    yield from session.heed()
    refuse_if_undoing(session)


def _is_final(calling: StepCall, error: BaseException) -> bool:
    """What it called has ended for good, or means something else: asking again would be answered the same."""
    if calling.step.guards_itself and isinstance(error, Misuse):
        return True
    return calling.step.plan.repeat is SAFE and isinstance(error, ANSWERS)


def _circle(session: Session, calling: StepCall, error: BaseException) -> Misuse | None:
    """A run that asks for the one that called it: each would lie down for the other, and come round for ever."""
    waits = _is_at_work(error, calling) or (calling.step.plan.repeat is SAFE and isinstance(error, Waiting))
    if not waits or not isinstance(error, Inner) or error.reference not in session.callers:
        return None
    return Misuse(
        f"{calling.name} is the very run that waits for this call, so neither could ever end; call it with another "
        "key, or leave it to a worker with .start(…) and go on."
    )


def _is_at_work(error: BaseException, calling: StepCall) -> TypeGuard[InProgress]:
    """Whether it called a run that somebody is at."""
    return calling.step.plan.repeat is SAFE and isinstance(error, InProgress) and error.data.get("state") == HELD


def refuse_if_undoing(session: Session) -> None:
    """Somebody said stop: nothing new is begun."""
    if session.is_to_be_undone:
        session.halt(Undo())


def _wait_for_inner(session: Session, calling: StepCall, note: EntryNote, error: Inner) -> NoReturn:
    """A run or a claim that this step asked for is not at its end: no failure of the step, and no attempt."""
    if isinstance(error, NeedsReview):
        session.finished(
            calling.name, RETRY, structs.replace(note, fault=fault_of(error), not_before=None, first_at=None)
        )
        session.halt(Review(f"{calling.name}: {INNER_REVIEW}: {error.data.get('reason', '')}", _awaited(error)))
    left = _time_left(session, error)
    seconds = min(LONGEST_LOOK, left + 0.05) if left > 0 else OVERDUE_LOOK
    _count_anew(session, calling, note)
    session.halt(Wait(WAITS_FOR_RUN + calling.name, seconds, runs=_awaited(error)))


def _time_left(session: Session, error: Waiting | InProgress) -> float:
    """Until when nothing is to be expected of it: it sleeps, or, if its holder is dead, nobody may take it over."""
    if isinstance(error, InProgress):
        return max(OVERDUE_LOOK, float(error.data["retry_after"]))
    until: float | None = error.data.get("until")
    return LONGEST_LOOK if until is None else until - session.ledger.now()


def _count_anew(session: Session, calling: StepCall, note: EntryNote) -> None:
    """How long the other one takes does not count: its time runs from its next failure."""
    known = session.ledger.entries.get(calling.name)
    if known is not None and (known.state == STARTED or known.note.first_at is not None):
        note = structs.replace(note, starts=note.starts - 1, first_at=None, not_before=None)
        session.put_off(calling.name, RETRY, note)


def _awaited(error: Inner) -> tuple[str, ...]:
    """The run it waits for, if it was under way when it was asked: one that had ended would be found so for ever."""
    return (error.reference,) if error.reference and error.data.get("state") in UNDER_WAY else ()


def _record_wait(session: Session, calling: StepCall, note: EntryNote, move: Later, now: float) -> None:
    session.put_off(calling.name, move.state, structs.replace(note, not_before=now + move.seconds))


def take_back(session: Session, calling: StepCall, note: EntryNote) -> None:
    """Its start is on record, and it was none: left so, it would be counted, and a person asked about it."""
    started = session.ledger.entries.get(calling.name)
    if started is not None and started.state == STARTED:
        session.put_off(calling.name, RETRY, structs.replace(note, starts=note.starts - 1))


def park(session: Session, calling: StepCall, entry: Entry | None, reason: str) -> NoReturn:
    """Once: a run that is parked again for the same reason writes nothing new about it."""
    if entry is None or entry.state != UNKNOWN:
        old = (
            entry.note if entry else EntryNote(calling.asked, calling.step.plan.repeat.kind, sole=has_id(calling.name))
        )
        session.finished(calling.name, UNKNOWN, structs.replace(old, reason=reason))
    session.halt(Review(f"{calling.name}: {reason}"))


def step_failed(session: Session, name: str, fault: Fault) -> StepFailed:
    run = shown_run(session.claim.run)
    return StepFailed(
        f"{name} failed: {fault.type}: {fault.message}; catch StepFailed to go another way, or look at "
        f"the run: twiceproof runs show {run}",
        step=name,
        fault=fault,
        run=run,
    )


def failed_before(session: Session, calling: StepCall, entry: Entry | None) -> StepFailed:
    """On record: in a replay it must not be another answer."""
    known = session.ledger.entries.get(calling.name)
    if known is not None and known.state == RETRY:
        session.finished(calling.name, STEP_FAILED, structs.replace(known.note, not_before=None))
    fault = entry.note.fault if entry else None
    return step_failed(session, calling.name, fault or Fault("unknown"))


# What Python raises about code that is wrong. A class of somebody's own that descends from one is raised on purpose.
MISTAKES = (
    AttributeError,
    TypeError,
    NameError,
    KeyError,
    IndexError,
    ImportError,
    AssertionError,
    NotImplementedError,
    ZeroDivisionError,
    RecursionError,
    SyntaxError,
)


def is_mistake(error: BaseException) -> bool:
    """Of several at once, one is enough: undone because of the others, the run could not go on after a fix."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_mistake(one) for one in error.exceptions)
    return isinstance(error, MISTAKES) and type(error).__module__.partition(".")[0] in sys.stdlib_module_names


def mistake_text(error: BaseException) -> str:
    """What it is, and the line that raised it."""
    fault, trace = fault_of(error), error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace is not None else ""
    return f"{fault.type}: {fault.message}{where}"
