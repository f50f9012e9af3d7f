"""Undo, cancel."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct, structs

from ...claims.claim import DONE, FAILED, HELD, QUEUED, REVIEW, Fault, body_of, claim_of
from ...claims.manager import FOR_EVER
from ...claims.results import unpack
from ...claims.run_ids import shown_run
from ...claims.states import Lifetime, finish_times, is_lapsed
from ...errors import Misuse, ResultNotKept, StepFailed
from ...operations import InThread, Operation, await_, block
from ...records import Address, Record, Replace, Written
from ...safe_text import suggested_command
from ...stores.base import Store
from ..step import Step, called_with
from .drift import Unvisited
from .exits import Review
from .ledger import RETRY, STARTED, STEP_DONE, STEP_FAILED, STEP_KIND, UNKNOWN, Entry, EntryNote
from .run_dependencies import beckoned, wake_waiters
from .run_states import RunState, queue_of, with_work, work_of
from .step_identity import arguments_digest
from .step_runner import place_of
from .step_timeout import Outlive, overdue_at

if TYPE_CHECKING:
    from ..step import StepCall
    from .session import Session

__all__ = [
    "CANCELLED",
    "UNDO",
    "Undone",
    "cancel",
    "is_aside",
    "is_undo",
    "refuse_cancelled",
    "refuse_undone",
    "undo_all",
    "undoes",
]


UNDO = "undo:"
CANCELLED = "cancelled"
PAGE = 1_000
NAMED = 3


def undoes(entries: Collection[str]) -> bool:
    return any(is_undo(name) and not is_aside(name, entries) for name in entries)


def refuse_cancelled(record: Record | None, where: Sequence[str] = ()) -> None:
    """Before a run is tried again: somebody's word to stop it is the last one, and must not vanish."""
    claim = claim_of(record) if record is not None else None
    work = RunState() if claim is None else work_of(claim)
    if record is None or claim is None or not work.undoing or record.state not in (STEP_FAILED, REVIEW):
        return
    word = f"This run was {work.undoing} by {work.by or 'somebody'}"
    if record.state == STEP_FAILED:
        move = suggested_command(*where, "runs", "fork", shown_run(claim.run), "--key", "KEY")
        raise Misuse(f"{word}, and stays so. Start it as something new: {move}")
    if work.undoing == CANCELLED:
        move = suggested_command(*where, "review", "settle", shown_run(claim.run))
        raise Misuse(f"{word}, and must still be undone. Settle it: {move}")


def refuse_undone(store: Store, at: Address, where: Sequence[str] = ()) -> Operation[None]:
    """Before a run that failed is tried again: what it did must still be there, and nobody have stopped it."""
    refuse_cancelled((yield from store.read(at)).record, where)
    space = at.space
    names: set[str] = set()
    after: str | None = ""
    while after is not None:
        page = yield from store.scan(STEP_KIND, space=space, after=after or None, limit=PAGE)
        names.update(record.at.key for record in page.records)
        after = page.after
    if undoes(names):
        raise Misuse("This run was undone; what it did is gone. Start it under another key: twiceproof runs fork")


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


def undo_all(session: Session) -> Operation[Undone]:
    """What was undone. Leaves by Unwind if a step waits, or a person must decide."""
    _refuse_unknown(session)
    _refuse_uncalled(session)
    yield from _refuse_overdue(session)
    session.stop = session.cut = None
    session.compensating = True
    session.unvisited = Unvisited(name for name in session.unvisited if is_undo(name))
    undone: list[str] = []
    left: list[str] = []
    for entry in sorted(session.ledger.entries.values(), key=lambda entry: -entry.note.order):
        calling = session.calls.get(entry.name)
        if entry.state != STEP_DONE or calling is None or is_undo(entry.name):
            continue
        if calling.step.undo is None:
            left.append(entry.name)
            continue
        yield from _undo(session, entry, calling, calling.step.undo)
        undone.append(entry.name)
    return Undone(tuple(undone), tuple(left))


def _refuse_unknown(session: Session) -> None:
    """Undoing around an open question could undo what has not happened yet."""
    _open_doubts(session)
    entries = session.ledger.entries.values()
    unknown = sorted(entry.name for entry in entries if entry.state in (STARTED, UNKNOWN) and not is_undo(entry.name))
    if unknown:
        session.halt(Review(f"it must be undone, but the outcome of {', '.join(unknown)} is unknown"))


def _open_doubts(session: Session) -> None:
    """What would have been asked again will not be: whether it happened is for a person now."""
    for entry in list(session.ledger.entries.values()):
        if entry.note.doubt and not is_undo(entry.name) and _is_open(session, entry):
            why = "no answer came: whether it was done is unknown"
            session.finished(entry.name, UNKNOWN, structs.replace(entry.note, reason=why))


def _is_open(session: Session, entry: Entry) -> bool:
    """Of what may be repeated freely only what has an undo: passed over, its effect would stay."""
    if entry.note.repeat == "keyed":
        return entry.state == RETRY
    calling = session.calls.get(entry.name)
    undoable = calling is not None and calling.step.undo is not None
    return undoable and entry.note.repeat == "safe" and entry.state in (RETRY, STEP_FAILED)


def _refuse_uncalled(session: Session) -> None:
    """Only a step that is called says how it is undone: passed over in silence, its effect would stay."""
    entries = session.ledger.entries.values()
    done = (entry for entry in entries if entry.state == STEP_DONE and entry.note.repeat)
    gone = sorted(entry.name for entry in done if entry.name in session.unvisited and not is_undo(entry.name))
    if gone:
        session.halt(Review(f"it must be undone, but the flow changed and no longer calls {', '.join(gone)}"))


def _refuse_overdue(session: Session) -> Operation[None]:
    """A thread that is still at a step would do it again after it was undone."""
    for name, calling in list(session.calls.items()):
        plan = calling.step.plan
        counts = plan.timeout is not None and (calling.step.undo is not None or plan.repeat.writes_intent)
        attempts = overdue_at(place_of(session, name)) if counts else []
        if attempts and (yield Outlive(attempts, plan.timeout or 0.0)) is None:
            session.halt(Review(f"it must be undone, but {name} is still at work, though its time is over"))


def is_undo(name: str) -> bool:
    return name.startswith(UNDO)


def is_aside(name: str, entries: Collection[str]) -> bool:
    """Whether this undoes a duplicate, not a step of the run: the run's own way has nothing to do with it."""
    return is_undo(name) and name.removeprefix(UNDO) not in entries


def _undo(session: Session, entry: Entry, calling: StepCall, undo: Step) -> Operation[None]:
    """A step like any other, with a declaration of its own, under a name that is found again."""
    text = yield from unpack(session.parts.store, session.hold.held.at, entry.note.result, entry.note.spill)
    result: Any = calling.step.results.restore(text, loose=entry.note.loose) if text else None
    given = called_with(undo.function, {**calling.arguments, "result": result})
    _announce(session, UNDO + entry.name, undo, given)
    work = session.step(undo, (), given, name=UNDO + entry.name)
    try:
        if session.drive is await_ and not undo.is_async:
            yield from InThread(lambda: block(work))  # awaited, a plain function would fail after it has acted
        else:
            yield from work
    except StepFailed as error:
        _leave_to_a_person(session, UNDO + entry.name, error)
    except ResultNotKept:
        pass  # it is undone, and nobody asks what that returned


def _announce(session: Session, name: str, undo: Step, given: dict[str, Any]) -> None:
    """On record before the first one acts: whoever takes over must not go on with the flow, nor drop it as stale."""
    if not undoes(session.ledger.entries):
        note = EntryNote(arguments_digest(undo.arguments.bind((), given)), undo.plan.repeat.kind, starts=0)
        session.ledger.note(Entry(name, RETRY, note, at=session.ledger.now()))


def _leave_to_a_person(session: Session, name: str, error: StepFailed) -> NoReturn:
    """Who tries it again, or has undone it by hand and says so."""
    fault = error.data["fault"]
    reason = f"{name} failed with {fault.type}: {fault.message}"
    session.finished(name, UNKNOWN, structs.replace(session.ledger.entries[name].note, reason=reason))
    session.halt(Review(reason))


def cancel(store: Store, at: Address, by: str, life: Lifetime = FOR_EVER) -> Operation[str]:
    """Says the state the run is in now. One that somebody is at is beckoned: it stops before its next step.

    `life` is that of its flow; where that is not known, what is cancelled is kept for ever.
    """
    while True:
        found = yield from store.read(at)
        record = _cancellable(found.record)
        if record.state in (DONE, FAILED) or work_of(claim_of(record)).undoing:
            return record.state
        live = record.state == HELD and not is_lapsed(record, found.now)
        write = _beckon(record, by, found.now) if live else _stop(record, by, life)
        written = yield from store.write(write)
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


def _beckon(record: Record, by: str, now: float) -> Replace:
    return beckoned(record, with_work(claim_of(record), undoing=CANCELLED, by=by), now)


def _stop(record: Record, by: str, life: Lifetime) -> Replace:
    """Nobody is at it. One that never began just ends; any other is undone by whoever takes it."""
    claim = claim_of(record)
    adrift = record.state == HELD or work_of(claim).adrift  # what its holder was at is not known to be undone
    claim = with_work(claim, undoing=CANCELLED, by=by, adrift=adrift)
    if claim.attempt == 0:
        body = body_of(structs.replace(claim, fault=Fault("Cancelled", f"cancelled by {by}")))
        queue, due_in, _ = finish_times(FAILED, life)
        return Replace(record.at, body, FAILED, version=record.version, draw=True, queue=queue, due_in=due_in)
    queue = queue_of(claim.tenant, claim.operation, work_of(claim).version)
    return Replace(record.at, body_of(claim), QUEUED, version=record.version, draw=True, queue=queue, due_in=0.0)
