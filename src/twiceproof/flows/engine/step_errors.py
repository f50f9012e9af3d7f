"""StepErrors: what follows from an attempt that raised; and errors that are mistakes in a flow's own code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from msgspec import structs

from ...claims.claim import HELD, QUEUED, REVIEW, WAITING, Fault, shown_run
from ...claims.error_classification import fault_of, retry_after
from ...effects.base import BrokenDescription
from ...effects.repeat import SAFE
from ...errors import (
    Duplicate,
    InProgress,
    Misuse,
    NeedsReview,
    OutcomeUnknown,
    PayloadMismatch,
    PriorFailure,
    ResultNotKept,
    Stale,
    StepFailed,
    ValueRefused,
    Waiting,
)
from ...operations import Operation
from ..step import StepCall
from .compensation import Compensation
from .context import Unwind
from .decisions import After, Later, NeedsPerson, Refuse, on_error
from .exits import Review, Wait
from .ledger import RETRY, STARTED, STEP_FAILED, UNKNOWN, Entry, EntryNote
from .run_states import BROKE, INNER_REVIEW, WAITS_FOR_RUN

if TYPE_CHECKING:
    from .session import Session

__all__ = [
    "BrokenFlowText",
    "StepErrors",
    "is_mistake",
    "is_wrong_call",
    "mistake_text",
    "refuse_without_result",
    "step_failed",
    "wait_cause",
]


LONGEST_LOOK = 300.0  # seconds after which a run checks on a run that it waits for, should no wake-up arrive
UNDER_WAY = (QUEUED, WAITING, HELD, REVIEW)
OVERDUE_LOOK = 5.0  # seconds, for a run that is due and not taken: without a pause the waiting run would spin
LONGEST_CAUSE = 200  # characters of an error in the text of a wait
ANSWERS = (PriorFailure, PayloadMismatch, Stale, Duplicate, ResultNotKept)
Inner = Waiting | NeedsReview | InProgress  # what a call of another run raises if that run has not ended


class BrokenFlowText(BrokenDescription):
    """The text of a flow, such as an expression in its file, does not fit the data at hand."""


class StepErrors:
    """Classifies the error of one attempt, and records what follows from it."""

    __slots__ = ("_call", "_is_safe", "_session")

    def __init__(self, session: Session, call: StepCall) -> None:
        self._session = session
        self._call = call
        self._is_safe = call.step.plan.repeat is SAFE

    def handle(self, note: EntryNote, error: BaseException) -> Operation[None]:
        """Record what the error means. Returns if the step is to be attempted again; otherwise raises."""
        session, name = self._session, self._call.name
        if isinstance(error, Unwind):
            raise error
        circle = self._circle(error)
        if circle is None and isinstance(error, Waiting | NeedsReview) and self._is_safe:
            self._wait_for_inner(note, error)
        if isinstance(error, BrokenDescription) and not note.ambiguous:
            self._park_if_it_would_undo(note, error)
        error, now = circle or error, session.ledger.now()
        move, failed = self._classify(note, error, now)
        if circle is not None or self._is_final(error):
            move = Refuse()
        if self._is_at_work(error) and isinstance(move, Later) and move.seconds > session.patience:
            self._wait_for_inner(note, error)  # one that ends sooner is waited for in place
        if isinstance(move, NeedsPerson):
            self._park(failed, move.reason, error)
        if not isinstance(error, Exception):
            if isinstance(move, Later) and move.state == STARTED:
                self._record_wait(failed, move, now)  # or the next holder would probe too early
            raise error  # the process was told to stop: the next holder decides by what is recorded
        if isinstance(move, Refuse):
            session.finished(name, STEP_FAILED, failed)
            raise step_failed(session, name, failed.fault or fault_of(error)) from error
        self._record_wait(failed, move, now)
        yield from session.ledger.flush()
        yield from session.reload_after_interrupt()
        session.refuse_if_undoing()

    def _classify(self, note: EntryNote, error: BaseException, now: float) -> tuple[After, EntryNote]:
        """Decide what follows from the error, and make the note of the attempt."""
        session, plan = self._session, self._call.step.plan
        verdict = session.runtime.verdicts.judge(error, plan.not_done)
        failed = structs.replace(
            note,
            fault=fault_of(error, retryable=verdict == "clean"),
            first_at=note.first_at or session.last_time(),
            ambiguous=note.ambiguous or verdict == "ambiguous",
            unclassified=note.unclassified or verdict == "other",
            final=verdict == "final" or plan.retry.gives_up_on(error) or _repeats(error),
            policy=plan.retry.decided_by(error),
        )
        move = on_error(
            plan.after(failed.policy),
            note.starts,
            failed.first_at or now,
            verdict,
            now,
            asked=retry_after(error, now),
            roll=session.runtime.roll,
            ambiguous=failed.ambiguous,
            unclassified=failed.unclassified,
            final=failed.final,
        )
        return move, failed

    def _park(self, failed: EntryNote, reason: str, error: BaseException) -> NoReturn:
        """Leave the step to a person; an interrupt goes on to its own end."""
        name, fault = self._call.name, fault_of(error)
        self._session.finished(name, UNKNOWN, structs.replace(failed, reason=reason))
        if isinstance(error, Exception):
            self._session.stop_run(Review(f"{name}: {reason} ({fault.type}: {fault.message})", error=error))
        raise error

    def _park_if_it_would_undo(self, note: EntryNote, error: BrokenDescription) -> None:
        """Stop the run before a step that has not acted, as a mistake between two steps does; it begins after a fix."""
        session = self._session
        if session.undoing or not Compensation(session).would_undo():
            return
        session.finished(self._call.name, RETRY, structs.replace(note, fault=fault_of(error), not_before=None))
        session.stop_run(Review(BROKE + mistake_text(error), error=error))

    def _is_final(self, error: BaseException) -> bool:
        """Whether a called run or claim has ended, or does not fit the call: another call would raise the same."""
        if self._call.step.guards_itself and isinstance(error, Misuse):
            return True
        return self._is_safe and isinstance(error, ANSWERS)

    def _circle(self, error: BaseException) -> Misuse | None:
        """A run that calls one of its own callers: each would wait for the other for ever."""
        waits = self._is_at_work(error) or (self._is_safe and isinstance(error, Waiting))
        if not waits or not isinstance(error, Inner) or error.reference not in self._session.callers:
            return None
        return Misuse(
            f"{self._call.name} is the very run that waits for this call, so neither could ever end; call it with "
            "another key, or leave it to a worker with .start(…) and go on."
        )

    def _is_at_work(self, error: BaseException) -> TypeGuard[InProgress]:
        """Whether the step called a run that is held by a worker or caller."""
        return self._is_safe and isinstance(error, InProgress) and error.data.get("state") == HELD

    # -- another run that has not ended ----------------------------------------------------------

    def _wait_for_inner(self, note: EntryNote, error: Inner) -> NoReturn:
        """A run or claim that this step called has not ended: neither a failure of the step nor an attempt."""
        session, name = self._session, self._call.name
        if isinstance(error, NeedsReview):
            session.finished(name, RETRY, structs.replace(note, fault=fault_of(error), not_before=None, first_at=None))
            session.stop_run(Review(f"{name}: {INNER_REVIEW}: {error.data.get('reason', '')}", _awaited(error)))
        left = self._time_left(error)
        seconds = min(LONGEST_LOOK, left + 0.05) if left > 0 else OVERDUE_LOOK
        self._restart_count(note)
        session.stop_run(Wait(WAITS_FOR_RUN + name, seconds, runs=_awaited(error)))

    def _time_left(self, error: Waiting | InProgress) -> float:
        """Return the seconds in which the other run cannot end: it sleeps, or its lease has not lapsed."""
        if isinstance(error, InProgress):
            return max(OVERDUE_LOOK, float(error.data["retry_after"]))
        until: float | None = error.data.get("until")
        return LONGEST_LOOK if until is None else until - self._session.ledger.now()

    def _restart_count(self, note: EntryNote) -> None:
        """The other run's duration does not count: the step's retry period begins with its next failure."""
        known = self._session.ledger.entries.get(self._call.name)
        if known is not None and (known.state == STARTED or known.note.first_at is not None):
            note = structs.replace(note, starts=note.starts - 1, first_at=None, not_before=None)
            self._session.postpone_attempt(self._call.name, RETRY, note)

    def _record_wait(self, note: EntryNote, move: Later, now: float) -> None:
        self._session.postpone_attempt(
            self._call.name, move.state, structs.replace(note, not_before=now + move.seconds)
        )


def _repeats(error: BaseException) -> bool:
    """Whether another attempt with the same key would get the same answer."""
    return isinstance(error, OutcomeUnknown) and bool(error.data.get("repeats"))


def _awaited(error: Inner) -> tuple[str, ...]:
    """Return the run to wait for, if it had not ended when it was called: one that had would be found ended each time
    this run looks, and would wake it again at once."""
    return (error.reference,) if error.reference and error.data.get("state") in UNDER_WAY else ()


def step_failed(session: Session, name: str, fault: Fault) -> StepFailed:
    run = shown_run(session.claim.run)
    return StepFailed(
        f"{name} failed: {fault.type}: {fault.message}; catch StepFailed to go another way, or look at "
        f"the run: twiceproof runs show {run}",
        step=name,
        fault=fault,
        run=run,
    )


def refuse_without_result(session: Session, name: str, note: EntryNote) -> NoReturn:
    """The step is done, but its result was not kept. Without it the flow's function would take another branch."""
    why = note.spill.reason if note.spill else "its time is over"
    large = note.spill is not None and note.spill.size > 0
    advice = "return less, or give the app a place: resources=…" if large else "return plain values or dataclasses"
    if session.compensating:
        raise ResultNotKept(
            f"{name} was done, but its result could not be kept ({why}); {advice}.",
            operation=session.claim.operation,
            key=session.claim.key,
            step=name,
        )
    session.refuse_if_undoing()
    session.ask_for_result(name, f"it was done, but its result could not be kept ({why}); {advice}")


def wait_cause(entry: Entry | None) -> str:
    """Say what a wait follows: without it, a caller sees a time and not what is wrong."""
    fault = entry.note.fault if entry is not None else None
    cause = (entry.note.reason if entry is not None else "") or (f"{fault.type}: {fault.message}" if fault else "")
    return f" ({cause.rstrip(': .')[:LONGEST_CAUSE]})" if cause else ""


# -- mistakes in the flow's own code -------------------------------------------------------------


# What Python raises about code that is wrong. A user's own class that derives from one is raised on purpose.
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
    """Whether an error is a programming mistake. One in a group is enough: undone because of the others, the run could
    not go on after a fix."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_mistake(one) for one in error.exceptions)
    return isinstance(error, MISTAKES) and type(error).__module__.partition(".")[0] in sys.stdlib_module_names


def is_wrong_call(error: BaseException) -> bool:
    """Whether it is our own error about a wrong call or a flow's text. Not one that depends on data alone, such as a
    key that is blank."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_wrong_call(one) for one in error.exceptions)
    return type(error) in (Misuse, ValueRefused) or isinstance(error, BrokenDescription)


def mistake_text(error: BaseException) -> str:
    """Return the error, and the line that raised it."""
    fault, trace = fault_of(error), None if isinstance(error, BrokenDescription) else error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace is not None else ""
    awaited = isinstance(error, TypeError) and any(words in str(error) for words in NOT_AWAITABLE)
    advice = AWAITED_VALUE if awaited else ""
    return f"{fault.type}: {fault.message}{where}{advice}"


NOT_AWAITABLE = ("can't be used in 'await' expression", "can't be awaited")  # Python's own words, up to 3.13 and since
AWAITED_VALUE = (
    "; a step or effect declared with def gives its result at once, in an async flow too: call it without await, "
    "or declare it with async def"
)
