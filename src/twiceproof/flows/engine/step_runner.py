"""StepRunner: carries out one call of a step. What to do follows from `decisions`; what an error means, from
`step_errors`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import structs

from ...claims.blobs.records import externalise
from ...claims.claim import Fault, LostHold, shown_run
from ...claims.error_classification import fault_of
from ...claims.error_messages import BEFORE, claim_lost, inherited
from ...claims.held_claim import INHERITED
from ...claims.results import Misfit, Packed, only_described, pack, unpack
from ...clock import moment
from ...effects.base import Look, Unknown, look_of
from ...errors import Duplicate, StepFailed
from ...operations import InThread, Operation, Raised, Returned, Sleep, UserCall, block
from ..external_ids import write_missing_pointers, write_pointer
from ..ordering.turns import newer_version_applied, still_first
from ..step import StepCall, called_with
from ..transaction import LedgerHasNews, attempt_joined, outgoing_pieces
from .context import Attempt, attempt_var
from .decisions import (
    Act,
    Adopt,
    Later,
    NeedsPerson,
    Probe,
    Refuse,
    Replay,
    on_probe,
    on_probe_while_overdue,
    on_reached,
)
from .exits import GiveBack, Review, Undo, Wait
from .ledger import RETRY, STARTED, STEP_DONE, STEP_FAILED, UNKNOWN, Entry, EntryNote
from .ledger_flusher import PendingEntry
from .step_errors import StepErrors, refuse_without_result, step_failed, wait_cause
from .step_identity import effect_key, has_id
from .step_timeout import Outlive, Overdue, limited, overdue_at, overdue_of

if TYPE_CHECKING:
    from .session import Session

__all__ = ["StepRunner"]


log = logging.getLogger("twiceproof")


class StepRunner:
    """Carries out one call of a step, until there is a result, a failure, or a reason to stop the run."""

    __slots__ = ("_call", "_ledger", "_outgoing", "_session", "_step")

    def __init__(self, session: Session, call: StepCall) -> None:
        self._session = session
        self._ledger = session.ledger
        self._call = call
        self._outgoing: list[Any] = []
        self._step = call.step

    def run(self) -> Operation[Any]:
        """Return the step's result. Raises StepFailed, or Unwind if the run stops here."""
        tried = False
        while True:
            entry = self._ledger.entries.get(self._call.name)
            move = self._decide(entry, tried=tried)
            if isinstance(move, Probe | Act) and entry is not None:
                move = yield from self._consult(entry, move)
            if isinstance(move, Act):
                note = yield from self._begin(entry, move)
                if (yield from self._conclude(note, (yield from self._attempt(note)))):
                    return (yield from self._restore())
                tried = True
            elif isinstance(move, Replay):
                value = yield from self._restore()
                if self._step.external is not None:
                    yield from write_missing_pointers(self._session, self._call, value)
                return value
            elif isinstance(move, Refuse):
                raise self._failed_before(entry)
            elif isinstance(move, Later):
                yield from self._wait(entry, move)
            elif isinstance(move, NeedsPerson):
                self._park(entry, move.reason)

    def _decide(self, entry: Entry | None, *, tried: bool) -> Any:
        """Decide by what is recorded."""
        session = self._session
        crashed = session.crashed and not tried and session.may_have_started_unrecorded(self._step)
        since = session.last_time() if crashed and entry is None else 0.0
        now = self._ledger.now() if crashed or entry is not None else 0.0  # a new step's decision does not depend on it
        return on_reached(self._step.plan, entry, now, crashed=crashed, since=since, lapsed=session.lapsed_at)

    def _consult(self, entry: Entry, move: Probe | Act) -> Operation[Any]:
        """Ask an attempt that is still at work in this process, or the destination. None: decide again."""
        if self._step.may_outlive and (yield from self._await_overdue_if_any(entry)):
            return None
        return move if isinstance(move, Act) else (yield from self._ask(entry))

    # -- beginning -------------------------------------------------------------------------------

    def _begin(self, entry: Entry | None, act: Act) -> Operation[EntryNote]:
        """Check and record everything that must hold before a step acts."""
        session = self._session
        if session.runtime.draining:
            session.stop_run(GiveBack())  # between two steps a run can be handed to another worker
        if session.undoing:
            self._refuse_if_undoing(entry)
        session.refuse_unvisited(self._call.name, acts=True)
        if session.marks_starts(self._step):
            act = structs.replace(act, intent=True)
        self._step.results.warn_if_too_large(session.runtime.claims.value_limit)
        note = self._starting(entry, act)
        if act.intent:
            version = entry.version if entry else ""
            self._ledger.note(Entry(self._call.name, STARTED, note, version, self._ledger.now()))
        if act.intent or self._step.transaction is not None or not session.may_run_ahead():
            yield from self._ledger.flush()
        if session.slots or session.hold.lost is not None or session.hold_is_over():
            yield from self._check_hold()
            if not (yield from still_first(session)):
                self._withdraw_start(note)
                session.stop_run(Wait("lost its turn, and waits for another", 0.0))
        if self._ledger.interrupted:
            yield from session.reload_after_interrupt()
            if session.is_to_be_undone:
                self._withdraw_start(note)
                session.stop_run(Undo())
        return note

    def _refuse_if_undoing(self, entry: Entry | None) -> None:
        """If a crash may have begun this step without a record, a person decides: nothing is undone around it."""
        session, step = self._session, self._step
        if session.is_to_be_undone and step.is_asked_about and session.may_have_started_unrecorded(step):
            self._park(entry, "it must be undone, but whether this was done is unknown")
        session.refuse_if_undoing()

    def _starting(self, entry: Entry | None, act: Act) -> EntryNote:
        """Make the note of an attempt that begins."""
        session, call = self._session, self._call
        repeat, unique, place = self._step.plan.repeat.kind, has_id(call.name), session.place
        if entry is None and not act.intent:
            return EntryNote(call.asked, repeat, act.starts, unique=unique, place=place)
        now = self._ledger.now()
        crashed = session.may_have_started_unrecorded(self._step)
        first = (entry.note.first_at if entry else None) or (session.last_time() if crashed else now)
        return EntryNote(
            call.asked,
            repeat,
            act.starts,
            first_at=first,
            began_at=now,
            fault=entry.note.fault if entry else None,
            ambiguous=crashed or (entry is not None and (entry.note.ambiguous or entry.state == STARTED)),
            unclassified=entry is not None and entry.note.unclassified,
            policy=entry.note.policy if entry else "",
            unique=unique,
            place=place,
        )

    def _withdraw_start(self, note: EntryNote) -> None:
        """The start is recorded, but the step did not act: left so, it would count, and a person would be asked."""
        started = self._ledger.entries.get(self._call.name)
        if started is not None and started.state == STARTED:
            self._session.postpone_attempt(self._call.name, RETRY, structs.replace(note, starts=note.starts - 1))

    def _check_hold(self) -> Operation[None]:
        """Renew the claim if its deadline has passed: no step acts after that."""
        session, hold = self._session, self._session.hold
        if hold.lost is not None:
            raise inherited(hold) if hold.lost is INHERITED else claim_lost(hold, hold.lost, BEFORE)
        if session.hold_is_over():
            renewed = yield from session.runtime.claims.renew(hold.held)
            if isinstance(renewed, LostHold):
                hold.lost = renewed
                raise claim_lost(hold, renewed, BEFORE)
            hold.held = renewed

    # -- one attempt -----------------------------------------------------------------------------

    def _attempt(self, note: EntryNote) -> Operation[Any]:
        """Call the step's function once, and return how that ended."""
        session, call, plan = self._session, self._call, self._step.plan
        attempt = Attempt(session.space, call.name, note.starts, first_at=note.first_at)
        self._outgoing = attempt.outgoing
        token = attempt_var.set(attempt)
        finding: Any
        try:
            if self._step.transaction is not None:
                finding = yield from self._attempt_joined(note)
            else:
                finding = yield UserCall(self._work())
        finally:
            attempt_var.reset(token)
        finding = self._own_result(note, finding)
        overdue = overdue_of(finding, session.attempt_place(call.name)) if plan.timeout is not None else None
        if overdue is not None and plan.repeat.writes_intent:
            finding = yield from self._await_overdue(note, [overdue], finding)
        return finding

    def _attempt_joined(self, note: EntryNote) -> Operation[Any]:
        """Attempt a step in the transaction of its own entry; one that blocks, on a thread for an awaiting flow."""
        joined = attempt_joined(self._session, self._call, partial(self._completed, note), self._outgoing)
        transaction = self._step.transaction
        if self._step.is_async and transaction is not None and not transaction.is_awaited:
            return (yield from InThread(lambda: block(joined)))
        return (yield from joined)

    def _work(self) -> Callable[[], Any]:
        step, call = self._step, self._call
        function = step.function if step.is_async else step.call_plain
        if step.may_outlive:
            place = self._session.attempt_place(call.name)
            return limited(function, step.plan.timeout, call.args, call.kwargs, place, blocking=step.blocking)
        return lambda: function(*call.args, **call.kwargs)

    def _own_result(self, note: EntryNote, finding: Any) -> Any:
        """A guarded function reports a duplicate of this run's own call if that was made before a crash: its result
        counts."""
        error = finding.error if isinstance(finding, Raised) else None
        if not (self._step.guards_itself and note.ambiguous and isinstance(error, Duplicate) and error.data.get("own")):
            return finding
        return Returned(error.data["result"])

    def _conclude(self, note: EntryNote, finding: Any) -> Operation[bool]:
        """Record how an attempt ended. False: it failed, and will be attempted again."""
        if self._session.slots:
            yield from self._refuse_late(note, finding)
        if isinstance(finding, Raised):
            yield from StepErrors(self._session, self._call).handle(note, finding.error)
            return False
        if isinstance(finding, LedgerHasNews):
            return False
        if isinstance(finding, NeedsPerson):
            self._park(self._ledger.entries.get(self._call.name), finding.reason)
        if isinstance(finding, Returned):
            if told := only_described(finding.value):
                self._park(self._ledger.entries.get(self._call.name), told)
            yield from self._session.report_several(self._call.name, self._step.several(finding.value), goes_on=True)
            yield from self._complete(note, finding.value)
        if self._step.external is not None:
            yield from write_pointer(self._session, self._call.name)
        return True

    def _refuse_late(self, note: EntryNote, finding: Any) -> Operation[None]:
        """A step outlived its run's turn: its result becomes evidence, and a person decides which version stands."""
        newer = yield from newer_version_applied(self._session, self._call, finding)
        if not newer:
            return
        if isinstance(finding, Returned):
            yield from self._record_late_result(note, finding.value)
        begun = self._ledger.entries.get(self._call.name)
        self._park(begun, f"{newer} was let through while it was under way, and it may have landed after that")

    # -- an attempt that outlives its time-out ---------------------------------------------------

    def _await_overdue_if_any(self, entry: Entry) -> Operation[bool]:
        """Wait for attempts that outlived their time-out in this process. False: there are none.

        A step that is declared safe or keyed may be attempted concurrently with them.
        """
        writes_intent = self._step.plan.repeat.writes_intent
        attempts = overdue_at(self._session.attempt_place(self._call.name)) if writes_intent else []
        if attempts:
            finding = yield from self._await_overdue(entry.note, attempts, None)
            yield from self._conclude(entry.note, finding)
        return bool(attempts)

    def _await_overdue(
        self, note: EntryNote, attempts: list[Overdue], finding: Raised | None
    ) -> Operation[Returned | Raised | NeedsPerson]:
        """Return how overdue attempts end, if they end soon. Otherwise a check probes; anything else needs a person.

        The run is not left meanwhile: another process does not know of the thread, and would go on with the run.
        """
        plan = self._step.plan
        probes = plan.repeat.kind == "check"
        if probes or finding is None:
            late = yield from Outlive(attempts, (plan.timeout or 0.0) + (plan.repeat.settling if probes else 0.0))
            if late is not None:
                return late
        for one in attempts:
            one.when_over(partial(self._record_late_outcome, note))
        if finding is not None and not probes:
            return finding
        move = on_probe_while_overdue((yield from self._probe()))
        return Returned(move.receipt) if isinstance(move, Adopt) else move

    def _record_late_outcome(self, note: EntryNote, finding: Returned | Raised) -> None:
        """Keep as evidence how an attempt ended that is no longer waited for."""
        try:
            if isinstance(finding, Raised):
                failed = structs.replace(note, fault=fault_of(finding.error))
                block(self._ledger.keep_as_evidence([PendingEntry(Entry(self._call.name, STEP_FAILED, failed))]))
            else:
                block(self._record_late_result(note, finding.value))
        except Exception as error:  # noqa: BLE001 - there is no caller to raise it to
            run = shown_run(self._session.claim.run)
            log.warning("%s of %s ended late, and that could not be kept: %s", self._call.name, run, error)

    def _record_late_result(self, note: EntryNote, value: Any) -> Operation[None]:
        done, packed = self._completed(note, value)
        pieces = yield from externalise(self._session.runtime.claims.blobs, packed.writes(self._session.space, None))
        yield from self._ledger.keep_as_evidence([PendingEntry(Entry(self._call.name, STEP_DONE, done), tuple(pieces))])

    # -- waiting ---------------------------------------------------------------------------------

    def _wait(self, entry: Entry | None, move: Later) -> Operation[None]:
        """Wait in place if it is short; otherwise suspend the run, which then holds nothing."""
        session = self._session
        if move.seconds <= session.patience:
            yield from self._ledger.flush()
            yield Sleep(session.runtime.clock, move.seconds)
            return
        until = self._ledger.now() + move.seconds
        if entry is not None and move.state == STARTED:
            self._put_off(entry, until)
        what = "will be tried again" if move.state == RETRY else "will be looked for at its destination"
        session.stop_run(Wait(f"{self._call.name} {what} at {moment(until)}{wait_cause(entry)}", move.seconds))

    def _put_off(self, entry: Entry, until: float) -> None:
        """Record it: the next holder does not know when the previous one was last alive, and would probe too early."""
        if until > (entry.note.not_before or 0.0):
            self._ledger.note(structs.replace(entry, note=structs.replace(entry.note, not_before=until)))

    def _park(self, entry: Entry | None, reason: str) -> NoReturn:
        """Leave the step to a person. Parked again for the same reason, nothing new is written about it."""
        call = self._call
        if entry is None or entry.state != UNKNOWN:
            kind = self._step.plan.repeat.kind
            old = entry.note if entry else EntryNote(call.asked, kind, unique=has_id(call.name), place="")
            self._session.finished(call.name, UNKNOWN, structs.replace(old, reason=reason))
        self._session.stop_run(Review(f"{call.name}: {reason}"))

    # -- probing the destination -----------------------------------------------------------------

    def _ask(self, entry: Entry) -> Operation[Any]:
        """Probe the destination, and record what follows from its answer. None: decide again, it could not be asked."""
        session, call = self._session, self._call
        look = yield from self._probe()
        if isinstance(look, Unknown):
            yield from session.report_several(call.name, look.found, goes_on=False)
        move = on_probe(self._step.plan, entry, look, self._ledger.now(), roll=session.runtime.roll)
        if isinstance(move, Adopt):
            yield from session.report_several(call.name, self._step.several(move.receipt), goes_on=True)
            yield from self._complete(structs.replace(entry.note, reason="found at its destination"), move.receipt)
            yield from write_pointer(session, call.name)
            return Replay()
        if isinstance(move, Refuse):  # recorded: probed again in a replay, the destination could answer differently
            session.finished(call.name, STEP_FAILED, _absent(entry))
        elif isinstance(move, Later):
            self._look_again(entry, look, move)
            return None
        elif isinstance(move, Act) and session.is_to_be_undone:
            session.postpone_attempt(call.name, RETRY, _absent(entry))  # it did not happen, and no attempt begins
        return move

    def _look_again(self, entry: Entry, look: Look, move: Later) -> None:
        """Record that the look failed and when the next one is due: the count must survive this process."""
        why = look.why if isinstance(look, Unknown) else ""
        until = self._ledger.now() + move.seconds
        note = structs.replace(entry.note, looks=entry.note.looks + 1, not_before=until, reason=why)
        self._session.postpone_attempt(self._call.name, STARTED, note)

    def _probe(self) -> Operation[Look]:
        """Call the step's probe. One that raises tells nothing."""
        look, call, space = self._step.plan.repeat.probe, self._call, self._session.space
        if look is None:
            return Unknown("the step has no probe")
        given = called_with(look, {**call.arguments, "effect_key": effect_key(space, call.name)})
        token = attempt_var.set(Attempt(space, call.name, 0))
        try:
            finding = yield from UserCall(self._step.probe_call(given))
        finally:
            attempt_var.reset(token)
        if isinstance(finding, Returned):
            return look_of(finding.value)
        if not isinstance(finding.error, Exception):
            raise finding.error
        fault = fault_of(finding.error)
        return Unknown(f"the probe failed with {fault.type}: {fault.message}", failed=True)

    # -- completing ------------------------------------------------------------------------------

    def _complete(self, note: EntryNote, value: Any) -> Operation[None]:
        sent = (yield from outgoing_pieces(self._session, self._step, self._outgoing)) if self._outgoing else ()
        done, packed = self._completed(note, value)
        self._session.finished(self._call.name, STEP_DONE, done, *packed.writes(self._session.space, None), *sent)
        self._step.results.warn_if_lossy(value, packed)

    def _completed(self, note: EntryNote, value: Any) -> tuple[EntryNote, Packed]:
        """Make what is recorded about a step that returned `value`."""
        session, call = self._session, self._call
        packed = pack(value, session.hold.held, mark=call.name, most=session.runtime.claims.value_limit)
        maker = self._step.external
        done = structs.replace(
            note,
            result=packed.inline,
            spill=packed.spill,
            fault=None,
            external=maker({**call.arguments, "result": value}) if maker is not None else "",
            not_before=None,
            ambiguous=False,
            unclassified=False,
            final=False,
            policy="",
            mistyped=not self._step.results.fits(packed),
        )
        return done, packed

    # -- answering from the ledger ---------------------------------------------------------------

    def _restore(self) -> Operation[Any]:
        """Decode the recorded result: the first time too, so that a replay cannot branch differently."""
        session = self._session
        note = self._ledger.entries[self._call.name].note
        text: Any = note.result
        if not text:
            yield from self._ledger.flush()  # a large result is read back from where it was put
            text = yield from unpack(session.runtime.store, session.hold.held.at, note.result, note.spill)
        if not text:
            refuse_without_result(session, self._call.name, note)
        try:
            return self._step.results.restore(text, loose=note.loose or session.undoing or session.compensating)
        except Misfit as misfit:
            session.ask_for_result(self._call.name, str(misfit))

    def _failed_before(self, entry: Entry | None) -> StepFailed:
        """Record the failure, so that a replay gives the same answer."""
        known = self._ledger.entries.get(self._call.name)
        if known is not None and known.state == RETRY:
            self._session.finished(self._call.name, STEP_FAILED, structs.replace(known.note, not_before=None))
        fault = entry.note.fault if entry else None
        return step_failed(self._session, self._call.name, fault or Fault("unknown"))


def _absent(entry: Entry) -> EntryNote:
    return structs.replace(entry.note, not_before=None, ambiguous=False, unclassified=False, reason="")
