"""Carries out one step: attempt, probe, time-out, complete."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import structs

from ...claims.blobs.records import externalise
from ...claims.claim import LostHold
from ...claims.error_classification import fault_of
from ...claims.error_messages import BEFORE, claim_lost, inherited
from ...claims.held_claim import INHERITED
from ...claims.results import Misfit, Packed, pack, unpack
from ...claims.run_ids import shown_run
from ...clock import moment
from ...effects.base import Look, Unknown, look_of
from ...errors import Duplicate, NotDone, ResultNotKept
from ...operations import Operation, Raised, Returned, Sleep, UserCall, block
from ..external_ids import catch_up, point_back
from ..ordering.turns import newer_version_applied, still_first
from ..step import Step, StepCall, called_with
from ..transaction import Joined, KnownBetter, attempt_joined
from .context import Attempt, attempt_var
from .decisions import Act, Adopt, Later, NeedsPerson, Probe, Refuse, Replay, looked_beside, on_probe, on_reached
from .exits import GiveBack, Review, Undo, Wait
from .ledger import RETRY, STARTED, STEP_DONE, STEP_FAILED, Entry, EntryNote
from .step_errors import failed_before, handle_error, park, refuse_if_undoing, take_back
from .step_identity import effect_key, has_id
from .step_timeout import Outlive, Overdue, Place, limited, overdue_at, overdue_of

if TYPE_CHECKING:
    from .session import Session

__all__ = ["attempt", "place_of", "probe", "run_step"]


def attempt(
    session: Session, calling: StepCall, note: EntryNote, record: Callable[[Session, StepCall, EntryNote, Any], Any]
) -> Operation[Returned | Raised | Joined]:
    """`record` says what is written about a result, for a step that writes it in its own transaction."""
    token = attempt_var.set(Attempt(session.space, calling.name, note.starts))
    try:
        if calling.step.transaction is not None:
            return (yield from attempt_joined(session, calling, partial(record, session, calling, note)))
        finding: Returned | Raised = yield UserCall(_work(session, calling))
    finally:
        attempt_var.reset(token)
    return finding


def place_of(session: Session, name: str) -> Place:
    """What names a step's attempts in this process, whichever app of it they belong to."""
    return session.work.born, session.space, name


def _work(session: Session, calling: StepCall) -> Callable[[], Any]:
    step = calling.step
    if step.plan.timeout is not None:
        function = step.function if step.is_async else partial(_plain, step)
        return limited(function, step.plan.timeout, calling.args, calling.kwargs, place_of(session, calling.name))
    if step.is_async:
        return lambda: step.function(*calling.args, **calling.kwargs)
    return lambda: _plain(step, *calling.args, **calling.kwargs)


def _plain(step: Step, /, *args: Any, **kwargs: Any) -> Any:
    value = step.function(*args, **kwargs)
    if type(value) is CoroutineType:
        value.close()  # work that has not begun: recorded as done, it would be lost
        raise NotDone(f"{step.name} is a def that returns a coroutine; make it an `async def`.", final=True)
    return value


def probe(session: Session, calling: StepCall) -> Operation[Look]:
    """A probe that fails tells nothing."""
    look = calling.step.plan.repeat.probe
    if look is None:
        return Unknown("the step has no probe")
    key = effect_key(session.space, calling.name)
    given = called_with(look, {**calling.arguments, "effect_key": key})
    token = attempt_var.set(Attempt(session.space, calling.name, 0))
    try:
        finding = yield from UserCall(_called(look, given, calling.step))
    finally:
        attempt_var.reset(token)
    if isinstance(finding, Returned):
        return look_of(finding.value)
    if not isinstance(finding.error, Exception):
        raise finding.error
    return Unknown(f"the probe failed with {fault_of(finding.error).type}: {fault_of(finding.error).message}")


def _called(look: Callable[..., Any], given: dict[str, Any], step: Step) -> Callable[[], Any]:
    """Called the way its step is: an `async def` step may have a plain probe."""
    if not step.is_async:
        return lambda: look(**given)

    async def awaited() -> Any:
        answer = look(**given)
        return await answer if inspect.isawaitable(answer) else answer

    return awaited


log = logging.getLogger("twiceproof")


def run_step(session: Session, calling: StepCall) -> Operation[Any]:
    """Until there is a result, a failure, or a reason to stop."""
    tried = False
    while True:
        entry = session.ledger.entries.get(calling.name)
        move = _decided(session, calling, entry, tried=tried)
        if isinstance(move, Probe | Act) and entry is not None:
            move = yield from _informed(session, calling, entry, move)
        if isinstance(move, Act):
            if (yield from _act(session, calling, entry, move)):
                return (yield from _restore(session, calling))
            tried = True
        elif isinstance(move, Replay):
            value = yield from _restore(session, calling)
            if calling.step.external is not None:
                yield from catch_up(session, calling, value)
            return value
        elif isinstance(move, Refuse):
            raise failed_before(session, calling, entry)
        elif isinstance(move, Later):
            yield from _wait(session, calling, entry, move)
        elif isinstance(move, NeedsPerson):
            park(session, calling, entry, move.reason)


def _decided(session: Session, calling: StepCall, entry: Entry | None, *, tried: bool) -> Any:
    """By what is on record."""
    crashed = session.crashed and not tried and session.left_no_trace(calling.step)
    since = session.last_time() if crashed and entry is None else 0.0
    now = session.ledger.now() if crashed or entry is not None else 0.0  # of what is new, nothing depends on it
    return on_reached(calling.step.plan, entry, now, crashed=crashed, since=since, lapsed=session.lapsed_at)


def _informed(session: Session, calling: StepCall, entry: Entry, move: Probe | Act) -> Operation[Any]:
    """By what an attempt says that is still at it here, or the destination. None: look at the record anew."""
    if calling.step.plan.timeout is not None and (yield from _heard_overdue(session, calling, entry)):
        return None
    return move if isinstance(move, Act) else (yield from _ask(session, calling, entry))


# -- acting --------------------------------------------------------------------------------------


def _act(session: Session, calling: StepCall, entry: Entry | None, act: Act) -> Operation[bool]:
    """One attempt. False: it failed, and will be tried again."""
    note = yield from _begin(session, calling, entry, act)
    finding = _own(calling, note, (yield from attempt(session, calling, note, _done)))
    overdue = overdue_of(finding)
    if overdue is not None and calling.step.plan.repeat.writes_intent:
        finding = yield from _outlive(session, calling, note, [overdue], finding)
    return (yield from _conclude(session, calling, note, finding))


def _conclude(session: Session, calling: StepCall, note: EntryNote, finding: Any) -> Operation[bool]:
    """What follows from how an attempt ended."""
    if session.slots:
        yield from _refuse_late(session, calling, note, finding)
    if isinstance(finding, Raised):
        yield from handle_error(session, calling, note, finding.error)
        return False
    if isinstance(finding, KnownBetter):
        return False
    if isinstance(finding, NeedsPerson):
        park(session, calling, session.ledger.entries.get(calling.name), finding.reason)
    if isinstance(finding, Returned):
        _complete(session, calling, note, finding.value)
    if calling.step.external is not None:
        yield from point_back(session, calling.name)
    return True


def _own(calling: StepCall, note: EntryNote, finding: Any) -> Any:
    """What a guarded function tells who asks again after a crash: its first call may have been the one that counts."""
    error = finding.error if isinstance(finding, Raised) else None
    if not (calling.step.guards_itself and note.doubt and isinstance(error, Duplicate) and error.data.get("own")):
        return finding
    return Returned(error.data["result"])


def _begin(session: Session, calling: StepCall, entry: Entry | None, act: Act) -> Operation[EntryNote]:
    """Everything that has to be so before a step acts."""
    if session.parts.draining:
        session.halt(GiveBack())  # between steps is where a run can be handed on
    if session.undoing:
        _refuse_if_undoing(session, calling, entry)
    session.refuse_unvisited(calling.name, acts=True)
    if session.marks_starts(calling.step):
        act = structs.replace(act, intent=True)
    calling.step.results.forewarn(session.parts.claims.room)
    note = _starting(session, calling, entry, act)
    if act.intent:
        session.ledger.note(Entry(calling.name, STARTED, note, entry.version if entry else "", session.ledger.now()))
    if act.intent or calling.step.transaction is not None or not session.may_run_ahead():
        yield from session.ledger.flush()
    if session.slots or session.hold.lost is not None or session.hold_is_over():
        yield from _still_ours(session)
        if not (yield from still_first(session)):
            take_back(session, calling, note)
            session.halt(Wait("lost its turn, and waits for another", 0.0))  # this one gives way, and comes round
    if session.ledger.beckoned:
        yield from session.heed()
        if session.is_to_be_undone:
            take_back(session, calling, note)
            session.halt(Undo())
    return note


def _refuse_if_undoing(session: Session, calling: StepCall, entry: Entry | None) -> None:
    """What a crash may have done without a trace is for a person: nothing is undone around it."""
    step = calling.step
    if session.is_to_be_undone and step.is_asked_about and session.left_no_trace(step):
        park(session, calling, entry, "it must be undone, but nobody knows whether this was done")
    refuse_if_undoing(session)


def _starting(session: Session, calling: StepCall, entry: Entry | None, act: Act) -> EntryNote:
    """What is known as an attempt begins."""
    repeat, sole, place = calling.step.plan.repeat.kind, has_id(calling.name), session.place
    if entry is None and not act.intent:
        return EntryNote(calling.asked, repeat, act.starts, sole=sole, place=place)
    now = session.ledger.now()
    crashed = session.left_no_trace(calling.step)
    first = (entry.note.first_at if entry else None) or (session.last_time() if crashed else now)
    fault = entry.note.fault if entry else None
    doubt = crashed or (entry is not None and (entry.note.doubt or entry.state == STARTED))
    return EntryNote(
        calling.asked,
        repeat,
        act.starts,
        first_at=first,
        began_at=now,
        fault=fault,
        doubt=doubt,
        untold=entry is not None and entry.note.untold,
        sole=sole,
        place=place,
    )


def _still_ours(session: Session) -> Operation[None]:
    """Nothing acts past its own deadline."""
    hold = session.hold
    if hold.lost is not None:
        raise inherited(hold) if hold.lost is INHERITED else claim_lost(hold, hold.lost, BEFORE)
    if session.hold_is_over():
        renewed = yield from session.parts.claims.renew(hold.held)
        if isinstance(renewed, LostHold):
            hold.lost = renewed
            raise claim_lost(hold, renewed, BEFORE)
        hold.held = renewed


def _refuse_late(session: Session, calling: StepCall, note: EntryNote, finding: Any) -> Operation[None]:
    """A step that outlived its run's turn: what it says is evidence, and a person looks which of the two stands."""
    newer = yield from newer_version_applied(session, calling, finding)
    if not newer:
        return
    if isinstance(finding, Returned):
        yield from _testify_done(session, calling, note, finding.value)
    begun = session.ledger.entries.get(calling.name)
    park(session, calling, begun, f"{newer} was let through while it was under way, and it may have landed after that")


def _testify_done(session: Session, calling: StepCall, note: EntryNote, value: Any) -> Operation[None]:
    done, packed = _done(session, calling, note, value)
    pieces = yield from externalise(session.parts.claims.shelf, packed.writes(session.space, None))
    yield from session.ledger.testify([(Entry(calling.name, STEP_DONE, done), pieces)])


# -- an attempt that outlives its time -----------------------------------------------------------


def _heard_overdue(session: Session, calling: StepCall, entry: Entry) -> Operation[bool]:
    """Before it is asked about or done again: whether an attempt of this process was still at it, and ended now.

    What is declared safe or keyed may be done beside it.
    """
    attempts = overdue_at(place_of(session, calling.name)) if calling.step.plan.repeat.writes_intent else []
    if attempts:
        finding = yield from _outlive(session, calling, entry.note, attempts, None)
        yield from _conclude(session, calling, entry.note, finding)
    return bool(attempts)


def _outlive(
    session: Session, calling: StepCall, note: EntryNote, attempts: list[Overdue], finding: Raised | None
) -> Operation[Returned | Raised | NeedsPerson]:
    """What an attempt says in the end, if that comes soon. A check asks meanwhile; anything else is for a person.

    The run is not left meanwhile: another process, which knows nothing of the thread, would go on with it.
    """
    plan = calling.step.plan
    asks = plan.repeat.kind == "check"
    if asks or finding is None:
        late = yield from Outlive(attempts, (plan.timeout or 0.0) + (plan.repeat.settling if asks else 0.0))
        if late is not None:
            return late
    for one in attempts:
        one.when_over(partial(_testify, session, calling, note))
    if finding is not None and not asks:
        return finding
    move = looked_beside((yield from probe(session, calling)))
    return Returned(move.receipt) if isinstance(move, Adopt) else move


def _testify(session: Session, calling: StepCall, note: EntryNote, finding: Returned | Raised) -> None:
    """What is found out when nobody waits for it any more."""
    try:
        if isinstance(finding, Raised):
            failed = structs.replace(note, fault=fault_of(finding.error))
            block(session.ledger.testify([(Entry(calling.name, STEP_FAILED, failed), ())]))
        else:
            block(_testify_done(session, calling, note, finding.value))
    except Exception as error:  # noqa: BLE001 - nobody is there to hear of it
        log.warning(
            "%s of %s ended late, and that could not be kept: %s", calling.name, shown_run(session.claim.run), error
        )


# -- ending --------------------------------------------------------------------------------------


def _complete(session: Session, calling: StepCall, note: EntryNote, value: Any) -> None:
    done, packed = _done(session, calling, note, value)
    session.finished(calling.name, STEP_DONE, done, *packed.writes(session.space, None))
    calling.step.results.mind(value, packed)


def _done(session: Session, calling: StepCall, note: EntryNote, value: Any) -> tuple[EntryNote, Packed]:
    """What is recorded about a step that returned this."""
    packed = pack(value, session.hold.held, mark=calling.name, most=session.parts.claims.room)
    external = _external(calling, value)
    done = structs.replace(
        note,
        result=packed.inline,
        spill=packed.spill,
        fault=None,
        external=external,
        not_before=None,
        doubt=False,
        untold=False,
        final=False,
        unfit=not calling.step.results.fits(packed),
    )
    return done, packed


def _external(calling: StepCall, value: Any) -> str:
    maker = calling.step.external
    return maker({**calling.arguments, "result": value}) if maker is not None else ""


def _wait(session: Session, calling: StepCall, entry: Entry | None, move: Later) -> Operation[None]:
    """In place if it is short, or parked: then it holds nothing."""
    if move.seconds <= session.patience:
        yield from session.ledger.flush()
        yield Sleep(session.parts.clock, move.seconds)
        return
    if entry is not None and move.state == STARTED:
        _put_off(session, entry, session.ledger.now() + move.seconds)
    what = "will be tried again" if move.state == RETRY else "will be looked for at its destination"
    session.halt(Wait(f"{calling.name} {what} at {moment(session.ledger.now() + move.seconds)}", move.seconds))


def _put_off(session: Session, entry: Entry, until: float) -> None:
    """On record: whoever comes next does not know when the holder before was last alive, and would look too early."""
    if until > (entry.note.not_before or 0.0):
        session.ledger.note(structs.replace(entry, note=structs.replace(entry.note, not_before=until)))


# -- asking the destination ----------------------------------------------------------------------


def _ask(session: Session, calling: StepCall, entry: Entry) -> Operation[Any]:
    look = yield from probe(session, calling)
    move = on_probe(calling.step.plan, entry, look, session.ledger.now(), roll=session.parts.roll)
    if isinstance(move, Adopt):
        _complete(session, calling, structs.replace(entry.note, reason="found at its destination"), move.receipt)
        yield from point_back(session, calling.name)
        return Replay()
    if isinstance(move, Refuse):  # on record: asked again in a replay, the destination could tell something else
        session.finished(calling.name, STEP_FAILED, _absent(entry))
    elif isinstance(move, Act) and session.is_to_be_undone:
        session.put_off(calling.name, RETRY, _absent(entry))  # nothing is unknown about it, and nothing is begun
    return move


def _absent(entry: Entry) -> EntryNote:
    return structs.replace(entry.note, not_before=None, doubt=False, untold=False)


# -- answering -----------------------------------------------------------------------------------


def _restore(session: Session, calling: StepCall) -> Operation[Any]:
    """What the ledger says, decoded: the first time too, so that a replay cannot branch differently."""
    note = session.ledger.entries[calling.name].note
    text: Any = note.result
    if not text:
        yield from session.ledger.flush()  # a large result is read back from where it was put
        text = yield from unpack(session.parts.store, session.hold.held.at, note.result, note.spill)
    if not text:
        _not_kept(session, calling, note)
    try:
        return calling.step.results.restore(text, loose=note.loose or session.undoing or session.compensating)
    except Misfit as misfit:
        _ask_for_result(session, calling, str(misfit))


def _not_kept(session: Session, calling: StepCall, note: EntryNote) -> NoReturn:
    """Done, and nobody has what it returned. Without a result the flow's body would go another way."""
    why = note.spill.reason if note.spill else "its time is over"
    large = note.spill is not None and note.spill.size > 0
    advice = "return less, or give the app a place: resources=…" if large else "return plain values or dataclasses"
    if session.compensating:
        raise ResultNotKept(
            f"{calling.name} was done, but its result could not be kept ({why}); {advice}.",
            operation=session.claim.operation,
            key=session.claim.key,
            step=calling.name,
        )
    refuse_if_undoing(session)
    _ask_for_result(session, calling, f"it was done, but its result could not be kept ({why}); {advice}")


def _ask_for_result(session: Session, calling: StepCall, why: str) -> NoReturn:
    """A person says what it returned. The reason stands beside the step, too: by it the step is found."""
    entry = session.ledger.entries[calling.name]
    if entry.note.reason != why:
        session.ledger.note(structs.replace(entry, note=structs.replace(entry.note, reason=why)))
    session.halt(Review(f"{calling.name}: {why}"))
