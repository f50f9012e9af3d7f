"""Carries out one step of a run: the thin hand of `engine`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import structs

from ..claims.claim import Fault
from ..claims.outcomes import LostHold
from ..claims.refusals import BEFORE, claim_lost
from ..claims.results import Packed, pack, unpack
from ..claims.verdict import fault_of
from ..drive import Call, Operation, Raised, Returned
from ..effects.look import Look, Unknown, look_of
from ..errors import NeedsReview, NotDone, ResultNotKept, StepFailed, Waiting
from .context import Attempt, Unwind, attempt_var
from .engine import Act, Adopt, Ask, Later, Park, Refuse, Replay, after, before, looked
from .entry import DONE, FAILED, RETRY, STARTED, UNKNOWN, Entry, Note
from .ids import catch_up, point_back
from .joined import Joined, KnownBetter, attempt_joined
from .limit import limited
from .names import effect_key
from .nap import Nap
from .step import Step, called_with
from .stop import WAITS_FOR_RUN, GiveBack, Review, Undo, Wait
from .verdicts import retry_after

if TYPE_CHECKING:
    from .session import Session

LONGEST_LOOK = 300.0  # a run that waits for another looks after it this often, should nobody wake it

__all__ = ["Calling", "carry_out"]


class Calling:
    """One call of a step in a run."""

    __slots__ = ("args", "arguments", "asked", "kwargs", "name", "step")

    def __init__(
        self,
        step: Step,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: dict[str, Any],
        asked: str,
    ) -> None:
        self.step = step
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.arguments = arguments
        self.asked = asked


def carry_out(session: Session, calling: Calling) -> Operation[Any]:
    """Until there is a result, a failure, or a reason to stop."""
    plan, tried = calling.step.plan, False
    while True:
        entry = session.ledger.entries.get(calling.name)
        crashed = session.left_no_trace(plan) and not tried
        since = session.last_time() if crashed and entry is None else 0.0
        move: Any = before(plan, entry, session.ledger.now(), crashed=crashed, since=since)
        if isinstance(move, Ask) and entry is not None:
            move = yield from _ask(session, calling, entry)
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
            raise step_failed(session, calling.name, _last_fault(entry))
        elif isinstance(move, Later):
            yield from _wait(session, calling, move)
        else:
            _park(session, calling, entry, move.reason)


# -- acting --------------------------------------------------------------------------------------


def _act(session: Session, calling: Calling, entry: Entry | None, act: Act) -> Operation[bool]:
    """One attempt. False: it failed, and will be tried again."""
    if session.parts.draining:
        session.halt(GiveBack())  # between steps is where a run can be handed on
    _refuse_if_undoing(session)
    if entry is None:
        session.refuse_unvisited(calling.name)
    if session.marks_starts(calling.step.plan):
        act = structs.replace(act, intent=True)
    note = _starting(session, calling, entry, act)
    if act.intent:
        session.ledger.note(Entry(calling.name, STARTED, note, entry.version if entry else "", session.ledger.now()))
    if act.intent or calling.step.transaction is not None or not session.may_run_ahead():
        yield from session.ledger.flush()
    yield from _still_ours(session)
    finding = yield from _attempt(session, calling, note)
    if isinstance(finding, Raised):
        yield from _raised(session, calling, note, finding.error)
        return False
    if isinstance(finding, Park):
        _park(session, calling, entry, finding.reason)
    if isinstance(finding, Returned):
        _complete(session, calling, note, finding.value)
    elif isinstance(finding, KnownBetter):
        return False
    if calling.step.external is not None:
        yield from point_back(session, calling.name)
    return True


def _starting(session: Session, calling: Calling, entry: Entry | None, act: Act) -> Note:
    """What is known as an attempt begins."""
    repeat = calling.step.plan.repeat.kind
    if entry is None and not act.intent:
        return Note(calling.asked, repeat, act.starts)
    now = session.ledger.now()
    first = entry.note.first_at if entry else None
    first = first or (session.last_time() if session.left_no_trace(calling.step.plan) else now)
    return Note(
        calling.asked, repeat, act.starts, first_at=first, began_at=now, fault=entry.note.fault if entry else None
    )


def _still_ours(session: Session) -> Operation[None]:
    """Nothing acts past its own deadline, and a cancelled run begins nothing."""
    hold = session.hold
    if hold.lost is not None:
        raise claim_lost(hold, hold.lost, BEFORE)
    if session.parts.clock.monotonic() >= hold.held.deadline:
        renewed = yield from session.parts.claims.renew(hold.held)
        if isinstance(renewed, LostHold):
            hold.lost = renewed
            raise claim_lost(hold, renewed, BEFORE)
        hold.held = renewed
    if session.ledger.beckoned:
        yield from session.heed()
        _refuse_if_undoing(session)


def _refuse_if_undoing(session: Session) -> None:
    """Somebody said stop: nothing new is begun."""
    if session.undoing and not session.compensating:
        session.halt(Undo())


def _attempt(session: Session, calling: Calling, note: Note) -> Operation[Returned | Raised | Joined]:
    token = attempt_var.set(Attempt(session.space, calling.name, note.starts))
    try:
        if calling.step.transaction is not None:
            return (yield from attempt_joined(session, calling, partial(_done, session, calling, note)))
        finding: Returned | Raised = yield Call(_work(calling))
    finally:
        attempt_var.reset(token)
    return finding


def _work(calling: Calling) -> Callable[[], Any]:
    step = calling.step
    if step.plan.timeout is not None:
        return limited(step.function, step.plan.timeout, calling.args, calling.kwargs)
    if step.is_async:
        return lambda: step.function(*calling.args, **calling.kwargs)
    return lambda: _plain(step.function(*calling.args, **calling.kwargs), step)


def _plain(value: Any, step: Step) -> Any:
    if inspect.iscoroutine(value):
        value.close()  # work that has not begun: recorded as done, it would be lost
        raise NotDone(f"{step.name} is a def that returns a coroutine; make it an `async def`.")
    return value


# -- ending --------------------------------------------------------------------------------------


def _complete(session: Session, calling: Calling, note: Note, value: Any) -> None:
    done, packed = _done(session, calling, note, value)
    session.finished(calling.name, DONE, done, *packed.writes(session.space, None))
    calling.step.results.mind(value, packed)


def _done(session: Session, calling: Calling, note: Note, value: Any) -> tuple[Note, Packed]:
    """What is recorded about a step that returned this."""
    packed = pack(value, session.hold.held, mark=calling.name, most=session.parts.claims.room)
    external = _external(calling, value)
    done = structs.replace(
        note, result=packed.inline, spill=packed.spill, fault=None, external=external, not_before=None
    )  # fmt: skip
    return done, packed


def _external(calling: Calling, value: Any) -> str:
    maker = calling.step.external
    return maker({**calling.arguments, "result": value}) if maker is not None else ""


def _raised(session: Session, calling: Calling, note: Note, error: BaseException) -> Operation[None]:
    """Say what an error means, and write it down."""
    if isinstance(error, Unwind):
        raise error
    if isinstance(error, Waiting | NeedsReview):
        _wait_for_inner(session, calling, note, error)
    now = session.ledger.now()
    verdict = session.parts.verdicts.judge(error)
    plan, first = calling.step.plan, note.first_at or session.last_time()
    move = after(
        plan, note.starts, first, verdict, now,
        asked=retry_after(error, now), roll=session.parts.roll,
    )  # fmt: skip
    fault = fault_of(error, retryable=verdict == "clean")
    note = structs.replace(note, fault=fault, first_at=first)
    if isinstance(move, Park):
        session.finished(calling.name, UNKNOWN, structs.replace(note, reason=move.reason))
        if isinstance(error, Exception):
            session.halt(Review(f"{calling.name}: {move.reason} ({fault.type}: {fault.message})"))
        raise error
    if not isinstance(error, Exception):
        raise error  # the process is told to stop: whoever takes over decides by what is on record
    if isinstance(move, Refuse):
        session.finished(calling.name, FAILED, note)
        raise step_failed(session, calling.name, fault) from error
    _record_wait(session, calling, note, move, now)
    yield from session.ledger.flush()
    yield from session.heed()
    _refuse_if_undoing(session)


def _wait_for_inner(session: Session, calling: Calling, note: Note, error: Waiting | NeedsReview) -> NoReturn:
    """A run or a claim that this step asked for is not at its end: no failure of the step, and no attempt."""
    if isinstance(error, NeedsReview):
        session.finished(calling.name, RETRY, structs.replace(note, fault=fault_of(error), not_before=None))
        session.halt(Review(f"{calling.name}: what it called waits for a person: {error.data.get('reason', '')}"))
    until = error.data.get("until")
    seconds = LONGEST_LOOK if until is None else min(LONGEST_LOOK, max(0.0, until - session.ledger.now()) + 0.05)
    session.halt(Wait(WAITS_FOR_RUN + calling.name, seconds))


def _record_wait(session: Session, calling: Calling, note: Note, move: Later, now: float) -> None:
    old = session.ledger.entries.get(calling.name)
    note = structs.replace(note, not_before=now + move.seconds)
    session.ledger.note(Entry(calling.name, move.state, note, old.version if old else "", now))


def _wait(session: Session, calling: Calling, move: Later) -> Operation[None]:
    """In place if it is short, or parked: then it holds nothing."""
    if move.seconds <= session.patience:
        yield from session.ledger.flush()
        yield Nap(session.parts.clock, move.seconds)
        return
    what = "will be tried again" if move.state == RETRY else "will be looked for at its destination"
    session.halt(Wait(f"{calling.name} {what} in {move.seconds:.0f} s", move.seconds))


def _park(session: Session, calling: Calling, entry: Entry | None, reason: str) -> None:
    """Once: a run that is parked again for the same reason writes nothing new about it."""
    if entry is None or entry.state != UNKNOWN:
        old = entry.note if entry else Note(calling.asked, calling.step.plan.repeat.kind)
        session.finished(calling.name, UNKNOWN, structs.replace(old, reason=reason))
    session.halt(Review(f"{calling.name}: {reason}"))


# -- asking the destination ----------------------------------------------------------------------


def _ask(session: Session, calling: Calling, entry: Entry) -> Operation[Any]:
    look = yield from _probe(session, calling)
    move = looked(calling.step.plan, entry, look, session.ledger.now(), roll=session.parts.roll)
    if isinstance(move, Adopt):
        _complete(session, calling, structs.replace(entry.note, reason="found at its destination"), move.receipt)
        yield from point_back(session, calling.name)
        return Replay()
    return move


def _probe(session: Session, calling: Calling) -> Operation[Look]:
    """A probe that fails tells nothing."""
    probe = calling.step.plan.repeat.probe
    if probe is None:
        return Unknown("the step has no probe")
    key = effect_key(session.space, calling.name)
    given = called_with(probe, {**calling.arguments, "effect_key": key})
    token = attempt_var.set(Attempt(session.space, calling.name, 0))
    try:
        finding = yield from Call(_probing(probe, given, calling.step))
    finally:
        attempt_var.reset(token)
    if isinstance(finding, Returned):
        return look_of(finding.value)
    if not isinstance(finding.error, Exception):
        raise finding.error
    return Unknown(f"the probe failed with {fault_of(finding.error).type}: {fault_of(finding.error).message}")


def _probing(probe: Callable[..., Any], given: dict[str, Any], step: Step) -> Callable[[], Any]:
    """Called the way its step is: an `async def` step may have a plain probe."""
    if not step.is_async:
        return lambda: probe(**given)

    async def awaited() -> Any:
        answer = probe(**given)
        return await answer if inspect.isawaitable(answer) else answer

    return awaited


# -- answering -----------------------------------------------------------------------------------


def _restore(session: Session, calling: Calling) -> Operation[Any]:
    """What the ledger says, decoded: the first time too, so that a replay cannot branch differently."""
    note = session.ledger.entries[calling.name].note
    if note.result:
        return calling.step.results.restore(note.result)
    yield from session.ledger.flush()  # a large result is read back from where it was put
    text = yield from unpack(session.parts.store, session.hold.held.at, note.result, note.spill)
    if text:
        return calling.step.results.restore(text)
    why = note.spill.reason if note.spill else "its time is over"
    raise ResultNotKept(
        f"{calling.name} was done, but its result could not be kept ({why}); return plain values or dataclasses.",
        operation=session.claim.operation, key=session.claim.key, step=calling.name,
    )  # fmt: skip


def step_failed(session: Session, name: str, fault: Fault) -> StepFailed:
    return StepFailed(
        f"{name} failed: {fault.type}: {fault.message}; catch StepFailed to go another way, or look at the run.",
        step=name, fault=fault, run=session.claim.run,
    )  # fmt: skip


def _last_fault(entry: Entry | None) -> Fault:
    return (entry.note.fault if entry else None) or Fault("unknown")
