"""RunExecution: takes a run, calls the flow's function under its claim, and decides how the run ends here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from ...claims.claim import HELD, Claim, Fault, Held, TakeOutcome
from ...claims.error_classification import fault_of
from ...claims.error_messages import inherited
from ...claims.held_claim import INHERITED, HeldClaim
from ...claims.results import only_described
from ...claims.retention import forget
from ...claims.states import ClaimRequest, Move
from ...errors import Cancelled, ClaimLost, Misuse, StepFailed, StoreError, WaitSwallowed
from ...operations import Operation, Raised, Returned, UserCall, await_
from ...records import Found, Record, Remove
from .compensation import Compensation, Undone
from .context import Unwind, attempt_var, is_interrupt, session_var
from .exits import (
    Ended,
    HandedBack,
    InterruptRequested,
    Review,
    Reviewed,
    RunExit,
    RunFailed,
    Suspended,
    Undo,
    as_failed,
    as_review,
)
from .ledger_flusher import LateMismatch
from .run_dependencies import wake_waiters
from .run_states import (
    BROKE,
    FRESH,
    NOT_AWAITED,
    NOT_UNDONE,
    BeginRun,
    Leftover,
    RunRequest,
    RunState,
    decide_run,
    work_of,
)
from .session import Drive, Newer, Session
from .step_errors import is_mistake, is_wrong_call, mistake_text

if TYPE_CHECKING:
    from ..flow import Flow, OnFailure

__all__ = ["RunExecution", "TakenRun", "cancelled"]


log = logging.getLogger("twiceproof")
WORKER_PATIENCE = 0.2  # seconds; a worker waits no longer for a retry in place: other runs need its thread
MOST_NAMED = 5


class TakenRun:
    """A run that this process has taken, as it was found."""

    __slots__ = ("before", "claim", "drive", "hold", "newer", "work")

    def __init__(self, hold: HeldClaim, claim: Claim, before: str, drive: Drive) -> None:
        self.drive = drive
        self.hold = hold
        self.claim = claim
        self.work = work_of(claim)
        self.before = before
        self.newer: Newer | None = None

    @property
    def crashed(self) -> bool:
        """Whether its previous holder crashed."""
        return self.before == HELD or self.work.crash_unresolved


class RunExecution:
    """One run of a flow in this process: `take` it, then `run` it.

    `patience` is for how many seconds it waits for a retry in place. `slots` are the claims of its limits; an ordered
    flow needs them to know whether its run is still the only one of its object.
    """

    def __init__(self, flow: Flow, request: RunRequest, patience: float, slots: Sequence[HeldClaim] = ()) -> None:
        self._flow = flow
        self._runtime = flow.runtime
        self._request = request
        self._patience = patience
        self._slots = slots if flow.order is not None else ()
        self._move: Move
        self._taken: TakenRun
        self._session: Session
        self._arguments: dict[str, Any]
        self._exit: RunExit

    @classmethod
    def of_record(cls, flow: Flow, record: Record, claim: Claim, slots: Sequence[HeldClaim] = ()) -> RunExecution:
        """For a worker: a run as the store handed it out."""
        policy = flow.policy
        request = ClaimRequest(
            at=record.at,
            operation=flow.name,
            key=claim.key,
            owner=flow.runtime.owner(),
            lease=policy.lease,
            tenant=claim.tenant,
            run=claim.run,
            link=claim.link,
            repeat=policy.repeat,
            where=policy.where,
        )
        run = RunRequest(request, claim.work, flow.versions, picked=record.version)
        return cls(flow, run, WORKER_PATIENCE, slots)

    # -- taking ----------------------------------------------------------------------------------

    def take(self, found: Found | None = None) -> Operation[TakeOutcome | None]:
        """Take the run. None: it is ours, and can be run; otherwise why not. `found`: its record, if that is known."""
        while True:
            outcome = yield from self._runtime.claims.take(self._request.request, self._decide, found)
            move = self._move
            if not isinstance(move, Leftover):
                break
            yield from forget(self._runtime.store, move.record)
            found = None
        if isinstance(outcome, Held) and isinstance(move, BeginRun):
            hold = HeldClaim(self._request.request, outcome)
            self._taken = TakenRun(hold, move.claim, move.before, self._flow.drive)
            return None
        return outcome

    def _decide(self, request: ClaimRequest, record: Record | None, now: float) -> Move:
        self._move = decide_run(self._request, record, now)
        return self._move

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> Operation[Ended]:
        """Run it from its input to its end here, and wake the runs that wait for it."""
        store, taken = self._runtime.store, self._taken
        at, work = taken.hold.held.at, taken.work
        try:
            arguments = yield from self._flow.inputs.unpack(store, at, work)
            if work.spill is not None:
                yield from self._flow.inputs.keep_with_run(store, at, work)
        except (Misuse, msgspec.MsgspecError) as error:
            ended = yield from self._refuse_input(error)
        else:
            ended = yield from self._execute(arguments)
        work = taken.work  # as it is now: runs that came to wait for this one are in it
        if (work.parent or work.waiters) and not isinstance(ended, Suspended | HandedBack):
            yield from wake_waiters(store, work)
        return ended

    @property
    def unvisited(self) -> list[str]:
        """After `run`: what is in the ledger and was not called up to where the run stopped."""
        return sorted(self._session.unvisited)

    def _refuse_input(self, error: Exception) -> Operation[Ended]:
        """Its input cannot be read. Left held, it would lapse and be taken again for ever."""
        store, held, claim = self._runtime.store, self._taken.hold.held, self._taken.claim
        if self._taken.before == FRESH:
            yield from store.write(Remove(held.at, fence=held.fence))
        elif claim.attempt <= 1:  # queued, and never begun
            write = as_failed(held.at, claim, fault_of(error), self._flow.policy.life)
            yield from store.write(write(held.fence))
        else:
            reason = f"its input cannot be read: {error}"
            yield from store.write(as_review(held.at, claim, reason)(held.fence))
            return Reviewed(reason)
        return RunFailed(error)

    def _execute(self, arguments: dict[str, Any]) -> Operation[Ended]:
        flow, self._arguments = self._flow, arguments
        if flow.order is None:
            return self._run_body(lambda: flow.inputs.call(arguments))
        return flow.order.run(self._runtime, self._taken, flow.policy, arguments, flow.inputs.call, self._run_body)

    def _run_body(self, body: Callable[[], Any]) -> Operation[Ended]:
        taken, heartbeat = self._taken, self._runtime.heartbeat
        session = self._session = self._open_session(taken)
        self._exit = RunExit(session)
        heartbeat.keep(taken.hold)
        try:
            yield from session.prepare(taken.before)
            return (yield from self._finish((yield from self._call(body))))
        finally:
            session.close()
            taken.work = session.work
            heartbeat.drop(taken.hold)

    def _open_session(self, taken: TakenRun) -> Session:
        outer = session_var.get()
        return Session(
            self._runtime,
            taken.hold,
            taken.claim,
            taken.work,
            crashed=taken.crashed,
            patience=self._patience,
            drive=taken.drive,
            slots=self._slots,
            newer=taken.newer,
            callers=outer.callers if outer is not None and outer.open else frozenset(),
        )

    def _call(self, body: Callable[[], Any]) -> Operation[Returned | Raised]:
        # A run that is called in a step is not part of that step.
        inside, step = session_var.set(self._session), attempt_var.set(None)
        try:
            finding: Returned | Raised = yield UserCall(body)
        finally:
            attempt_var.reset(step)
            session_var.reset(inside)
        return finding

    # -- ending ----------------------------------------------------------------------------------

    def _finish(self, finding: Returned | Raised) -> Operation[Ended]:
        """End the run by how its function ended. A stop takes precedence over what the function made of it."""
        session = self._session
        if session.hold.lost is INHERITED:
            raise self._error_of_child(finding)
        error = finding.error if isinstance(finding, Raised) else None
        try:
            self._raise_if_out_of_reach(finding)
            if session.stop is None and session.broken_by is not None and not _is_interrupted(finding):
                # The function caught the interrupt: the process goes on, but the run does not.
                return (yield from self._exit.hand_back(session.broken_by))
            if session.stop is None and isinstance(finding, Returned) and not session.undoing:
                self._refuse_forgotten()
                self._refuse_unvisited()
                self._refuse_described(finding.value)
                return (yield from self._complete(finding.value))
            if session.stop is None and error is not None and not isinstance(error, Exception):
                yield from self._exit.hand_back(error)
                return HandedBack(error)
            if isinstance(error, WaitSwallowed):
                session.stop_run(Review(str(error)))
            if session.stop is None and not session.undoing and error is not None and self._is_mistake(error):
                self._park_mistake(error)
            if session.stop is None or isinstance(session.stop, Undo):
                return (yield from self._fail(_error_of(finding)))
        except Unwind:
            pass
        except LateMismatch as late:  # by the run's last write: its function has ended
            return (yield from self._exit.hand_back(late))
        return (yield from self._stop())

    def _error_of_child(self, finding: Returned | Raised) -> BaseException:
        """A forked child came out of its parent's run: it may end in any way, and does not end the run."""
        if isinstance(finding, Raised) and not isinstance(finding.error, Unwind):
            return finding.error
        return inherited(self._session.hold)

    def _raise_if_out_of_reach(self, finding: Returned | Raised) -> None:
        """The store or the claim is lost, so nothing can be written; also if the function caught that error, unless
        the process is told to stop."""
        error, broken_by = finding.error if isinstance(finding, Raised) else None, self._session.broken_by
        if isinstance(error, ClaimLost | StoreError):
            raise error
        if isinstance(broken_by, ClaimLost | StoreError) and not _is_interrupted(finding):
            raise broken_by

    def _refuse_forgotten(self) -> None:
        """Stop before a run is recorded as done if calls of its function were never awaited: they are not done."""
        session = self._session
        forgotten, going_on = session.pending_calls.forgotten(), session.under_way
        if forgotten:
            session.remember_unawaited([name for call in forgotten for name in call.names])
            awaits = session.drive is await_
            advice = "write await before it" if awaits else "make the flow an `async def`, and await it there"
            session.stop_run(Review(f"{_listed([str(call) for call in forgotten])} {NOT_AWAITED}: {advice}"))
        if going_on:
            advice = "wait for tasks and threads in the flow"
            session.stop_run(Review(f"{_listed(going_on)} {NOT_AWAITED} to its end: {advice}"))

    def _refuse_unvisited(self) -> None:
        if self._session.unvisited:
            gone = ", ".join(sorted(self._session.unvisited))
            self._session.stop_run(Review(f"the flow changed under this run: it no longer calls {gone}, in the ledger"))

    def _refuse_described(self, value: object) -> None:
        if told := only_described(value):
            self._session.stop_run(Review(told))

    def _is_mistake(self, error: BaseException) -> bool:
        """A wrong call of ours is raised as it is, as long as that undoes nothing."""
        return is_mistake(error) or (is_wrong_call(error) and Compensation(self._session).would_undo())

    def _park_mistake(self, error: BaseException) -> NoReturn:
        """A deployment that broke the function's code must not undo completed steps: after a fix the run goes on."""
        own_error = error if isinstance(error, Exception) else None
        self._session.stop_run(Review(BROKE + mistake_text(error), error=own_error))

    def _complete(self, value: Any) -> Operation[Ended]:
        """Record it as done, unless a stop is requested just then: then its last step is undone, too."""
        while not self._session.undoing:
            try:
                return (yield from self._exit.complete(self._flow.policy, self._flow.results, value))
            except InterruptRequested:
                yield from self._session.reload_after_interrupt()
        return (yield from self._fail(Misuse("it was being undone")))

    def _fail(self, error: BaseException) -> Operation[RunFailed]:
        """Undo completed steps, then record the failure. A stop while undoing stops the run."""
        undone = yield from self._undo()
        if self._session.work.undoing:
            error = cancelled(self._session.work)
        elif self._flow.on_failure is not None:
            yield from self._follow_failure(error, self._flow.on_failure)
        yield from self._exit.fail(self._flow.policy, _fault(error))
        return RunFailed(error, str(undone))

    def _follow_failure(self, error: BaseException, work: OnFailure) -> Operation[None]:
        """Run the steps that follow a final failure. One of them that fails does not hide why the run failed; one that
        waits for a retry, or whose outcome is unknown, keeps the run from ending."""
        self._session.start_after_failure()
        arguments = self._arguments
        finding = yield from self._call(lambda: work(arguments, error))
        if isinstance(finding, Returned):
            return
        self._raise_if_out_of_reach(finding)
        if not isinstance(finding.error, Exception):
            raise finding.error
        fault = fault_of(finding.error)
        log.warning("%s: a step after its failure failed: %s: %s", self._flow.name, fault.type, fault.message)

    def _undo(self) -> Operation[Undone]:
        """If undoing cannot even begin, a person decides: left held, the run would lapse and be taken for ever."""
        try:
            return (yield from Compensation(self._session).run())
        except (ClaimLost, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the completed steps are still there
            fault = fault_of(error)
            self._session.stop_run(Review(f"{NOT_UNDONE}: {fault.type}: {fault.message}"))

    def _stop(self) -> Operation[Ended]:
        """Suspend the run, unless a stop is requested just then: then there is nothing left to wait for."""
        session = self._session
        while True:
            try:
                return (yield from self._exit.suspend())
            except InterruptRequested:
                yield from session.reload_after_interrupt()
            try:
                if session.is_to_be_undone and not isinstance(session.stop, Review):
                    return (yield from self._fail(Misuse("it was being undone")))
            except Unwind:
                pass  # undoing was stopped itself


def cancelled(work: RunState) -> Cancelled:
    return Cancelled(f"{work.undoing} by {work.by or 'somebody'}", by=work.by)


def _is_interrupted(finding: Returned | Raised) -> bool:
    return isinstance(finding, Raised) and is_interrupt(finding.error)


def _error_of(finding: Returned | Raised) -> BaseException:
    if isinstance(finding, Raised) and not isinstance(finding.error, Unwind):
        return finding.error
    return Misuse("it was being undone")


def _fault(error: BaseException) -> Fault:
    """What is recorded of an error: for a step that failed, the step's own error."""
    if isinstance(error, StepFailed):
        fault = error.data["fault"]
        return Fault(fault.type, f"{error.data['step']}: {fault.message}")
    return fault_of(error)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
