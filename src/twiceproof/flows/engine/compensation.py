"""Compensation: undoes the completed steps of a run; `cancel` requests that from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct, structs

from ...claims.claim import DONE, FAILED, HELD, QUEUED, REVIEW, Fault, body_of, claim_of, shown_run
from ...claims.manager import FOR_EVER, refuse_changed
from ...claims.results import unpack
from ...claims.states import Lifetime, finish_times, is_lapsed
from ...errors import Misuse, ResultNotKept, StepFailed
from ...operations import InThread, Operation, await_, block
from ...records import Address, Record, Replace, Written, record_kind
from ...safe_text import suggested_command
from ...stores.base import Store, scan_all
from ..step import Step, called_with
from .exits import Review
from .ledger import RETRY, STARTED, STEP_DONE, STEP_FAILED, STEP_KIND, UNKNOWN, Entry, EntryNote
from .run_dependencies import interrupt, wake_waiters
from .run_states import RunState, queue_of, with_work, work_of
from .step_identity import UNDO, is_apart, undoes
from .step_timeout import Outlive, overdue_at

if TYPE_CHECKING:
    from ..step import StepCall
    from .session import Session

__all__ = ["CANCELLED", "COMPENSATION_KIND", "Compensation", "Undone", "cancel", "refuse_cancelled", "refuse_undone"]

COMPENSATION_KIND = record_kind("undo", beside_run=True)  # a claim that keeps two compensations of one receipt apart


CANCELLED = "cancelled"
NAMED = 3


# -- undoing -------------------------------------------------------------------------------------


class Undone(Struct, frozen=True):
    """Which steps were undone, and which are left as they are because they have no undo."""

    steps: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.left:
            return "what it did is undone" if self.steps else "it had done nothing"
        done = f"{_some(self.steps, 'is', 'are')} undone; " if self.steps else "nothing was undone: "
        return f"{done}{_some(self.left, 'has', 'have')} no undo"


def _some(names: tuple[str, ...], one: str, many: str) -> str:
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return f"{listed} {many if len(names) > 1 else one}"


class Compensation:
    """Undoes the completed steps of a run, the latest first."""

    __slots__ = ("_ledger", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ledger = session.ledger

    def run(self) -> Operation[Undone]:
        """Return what was undone. Raises Unwind if an undo waits, or a person must decide."""
        self._refuse_unknown()
        self._refuse_uncalled()
        yield from self._refuse_overdue()
        self._session.start_compensating()
        undone: list[str] = []
        left: list[str] = []
        for entry in sorted(self._ledger.entries.values(), key=lambda entry: -entry.note.order):
            call = self._session.calls.get(entry.name)
            if entry.state != STEP_DONE or call is None or is_apart(entry.name):
                continue
            if call.step.undo is None:
                left.append(entry.name)
                continue
            yield from self._undo(entry, call, call.step.undo)
            undone.append(entry.name)
        return Undone(tuple(undone), tuple(left))

    def would_undo(self) -> bool:
        """Whether a completed step has an undo."""
        done = (entry.name for entry in self._ledger.entries.values() if entry.state == STEP_DONE)
        calls = (self._session.calls.get(name) for name in done if not is_apart(name))
        return any(call is not None and call.step.undo is not None for call in calls)

    # -- refusals --------------------------------------------------------------------------------

    def _refuse_unknown(self) -> None:
        """Refuse to undo while an outcome is unknown: that could undo work that has not happened yet."""
        self._mark_ambiguous_unknown()
        entries = self._ledger.entries.values()
        unknown = sorted(each.name for each in entries if each.state in (STARTED, UNKNOWN) and not is_apart(each.name))
        if unknown:
            self._session.stop_run(Review(f"it must be undone, but the outcome of {', '.join(unknown)} is unknown"))

    def _mark_ambiguous_unknown(self) -> None:
        """A step that would have been attempted again will not be: a person must say whether it happened."""
        for entry in list(self._ledger.entries.values()):
            if entry.note.ambiguous and not is_apart(entry.name) and self._is_open(entry):
                why = "no answer came: whether it was done is unknown"
                self._session.finished(entry.name, UNKNOWN, structs.replace(entry.note, reason=why))

    def _is_open(self, entry: Entry) -> bool:
        """Of the steps that may be repeated freely only those with an undo: skipped, their effect would stay."""
        if entry.note.repeat == "keyed":
            return entry.state == RETRY
        call = self._session.calls.get(entry.name)
        undoable = call is not None and call.step.undo is not None
        return undoable and entry.note.repeat == "safe" and entry.state in (RETRY, STEP_FAILED)

    def _refuse_uncalled(self) -> None:
        """Only the call of a step gives its undo: a step that is no longer called would silently be skipped."""
        unvisited = self._session.unvisited
        done = (each for each in self._ledger.entries.values() if each.state == STEP_DONE and each.note.repeat)
        gone = sorted(each.name for each in done if each.name in unvisited and not is_apart(each.name))
        if gone:
            self._session.stop_run(
                Review(f"it must be undone, but the flow changed and no longer calls {', '.join(gone)}")
            )

    def _refuse_overdue(self) -> Operation[None]:
        """A thread that is still at work in a step could act after the step was undone."""
        session = self._session
        for name, call in list(session.calls.items()):
            plan = call.step.plan
            counts = call.step.may_outlive and (call.step.undo is not None or plan.repeat.writes_intent)
            attempts = overdue_at(session.attempt_place(name)) if counts else []
            if attempts and (yield Outlive(attempts, plan.timeout or 0.0)) is None:
                session.stop_run(Review(f"it must be undone, but {name} is still at work, though its time is over"))

    # -- one step --------------------------------------------------------------------------------

    def _undo(self, entry: Entry, call: StepCall, undo: Step) -> Operation[None]:
        """Run the undo as a step of its own, under a name that a replay finds again."""
        session, name = self._session, UNDO + entry.name
        text = yield from unpack(session.runtime.store, session.hold.held.at, entry.note.result, entry.note.spill)
        result: Any = call.step.results.restore(text, loose=entry.note.loose) if text else None
        given = called_with(undo.function, {**call.arguments, "result": result})
        self._announce(name, undo, given)
        work = session.step(undo, (), given, name=name)
        try:
            if session.drive is await_ and not undo.is_async:
                yield from InThread(lambda: block(work))  # awaited, a plain function would fail after it has acted
            else:
                yield from work
        except StepFailed as error:
            self._leave_to_a_person(name, error)
        except ResultNotKept:
            pass  # it is undone, and the result of an undo is not used

    def _announce(self, name: str, undo: Step, given: dict[str, Any]) -> None:
        """Record that undoing begins before the first undo acts: the next holder must neither go on with the flow nor
        drop the run as stale."""
        if not undoes(self._ledger.entries):
            note = EntryNote(undo.asked(given), undo.plan.repeat.kind, starts=0)
            self._ledger.note(Entry(name, RETRY, note, at=self._ledger.now()))

    def _leave_to_a_person(self, name: str, error: StepFailed) -> NoReturn:
        """A person retries the undo, or undoes the step by hand and settles it."""
        fault = error.data["fault"]
        reason = f"{name} failed with {fault.type}: {fault.message}"
        self._session.finished(name, UNKNOWN, structs.replace(self._ledger.entries[name].note, reason=reason))
        self._session.stop_run(Review(reason))


# -- before a retry ------------------------------------------------------------------------------


def refuse_cancelled(record: Record | None, where: Sequence[str] = ()) -> None:
    """Refuse to retry a run that was cancelled: the request to stop it must not be lost."""
    claim = claim_of(record) if record is not None else None
    work = RunState() if claim is None else work_of(claim)
    if record is None or claim is None or not work.undoing or record.state not in (STEP_FAILED, REVIEW):
        return
    what = f"This run was {work.undoing} by {work.by or 'somebody'}"
    if record.state == STEP_FAILED:
        move = suggested_command(*where, "runs", "fork", shown_run(claim.run), "--key", "KEY")
        raise Misuse(f"{what}, and stays so. Start it as something new: {move}")
    if work.undoing == CANCELLED:
        move = suggested_command(*where, "review", "settle", shown_run(claim.run))
        raise Misuse(f"{what}, and must still be undone. Settle it: {move}")


def refuse_undone(store: Store, at: Address, where: Sequence[str] = ()) -> Operation[None]:
    """Refuse to retry a failed run that was cancelled, or whose completed steps were undone."""
    refuse_cancelled((yield from store.read(at)).record, where)
    records = yield from scan_all(store, STEP_KIND, space=at.space)
    if undoes({record.at.key for record in records}):
        raise Misuse("This run was undone; what it did is gone. Start it under another key: twiceproof runs fork")


# -- cancelling ----------------------------------------------------------------------------------


def cancel(store: Store, at: Address, by: str, life: Lifetime = FOR_EVER, *, version: str = "") -> Operation[str]:
    """Return the state that the run is in now. One that is held is interrupted: it stops before its next step.

    `life` is that of its flow; where that is not known, a cancelled run is kept for ever. `version`: the run's, as it
    was when this was decided; one that has changed since is refused.
    """
    from ...claims.acts import act_beside  # a late import: `App` is imported faster without it

    while True:
        found = yield from store.read(at)
        record = _cancellable(found.record)
        refuse_changed(record, version)
        if record.state in (DONE, FAILED) or work_of(claim_of(record)).undoing:
            return record.state
        live = record.state == HELD and not is_lapsed(record, found.now)
        write = _interrupt_holder(record, by, found.now) if live else _stop(record, by, life)
        written = yield from store.write(write, *act_beside(store, record, "cancel", by))
        if isinstance(written, Written):
            if write.state == FAILED:
                yield from wake_waiters(store, work_of(claim_of(record)))
            return write.state


def _cancellable(record: Record | None) -> Record:
    if record is None:
        raise Misuse("There is no such run; list them with: twiceproof runs list")
    if record.state == REVIEW:
        raise Misuse("This run waits for a person; settle it instead, with undo or abandon: twiceproof review settle")
    return record


def _interrupt_holder(record: Record, by: str, now: float) -> Replace:
    return interrupt(record, with_work(claim_of(record), undoing=CANCELLED, by=by), now)


def _stop(record: Record, by: str, life: Lifetime) -> Replace:
    """The run is not held. One that never began just fails; any other is undone by the next holder."""
    claim = claim_of(record)
    # What a holder that crashed was doing is not known to be undone.
    crash_unresolved = record.state == HELD or work_of(claim).crash_unresolved
    claim = with_work(claim, undoing=CANCELLED, by=by, crash_unresolved=crash_unresolved)
    if claim.attempt == 0:
        body = body_of(structs.replace(claim, fault=Fault("Cancelled", f"cancelled by {by}")))
        queue, due_in, _ = finish_times(FAILED, life)
        return Replace(record.at, body, FAILED, version=record.version, draw=True, queue=queue, due_in=due_in)
    queue = queue_of(claim.tenant, claim.operation, work_of(claim).version)
    return Replace(record.at, body_of(claim), QUEUED, version=record.version, draw=True, queue=queue, due_in=0.0)
