"""Runs work under a claim: take, work, record. One generator serves `def` and `async def` alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ..errors import NeedsReview, StoreError
from ..operations import Operation, Raised, Returned, UserCall, carry_stop_iteration
from .claim import Busy, Done, Held, LostHold, Mismatch
from .error_classification import CLEAN_VERDICTS, ErrorRegistry, fault_of
from .error_messages import (
    BEFORE,
    DURING,
    claim_lost,
    duplicate,
    in_doubt,
    named,
    no_longer_fits,
    refusal,
    refuse_other_payload,
    result_not_kept,
    unknown_after,
    unsafe_store,
)
from .held_claim import INHERITED, ClaimScope, Heartbeat, enclosing_claim
from .manager import ClaimManager
from .policy import Policy
from .results import Misfit, ResultType, pack, unpack
from .states import ClaimRequest

__all__ = ["Guard", "PriorResult"]

_NOT_DUPLICATES = (Mismatch, LostHold)


class PriorResult(Struct, frozen=True):
    """The answer to a duplicate: what the first call returned."""

    value: Any


class Guard:
    """Runs the work of one operation under its claims. It holds no state between calls: everything is in the store."""

    def __init__(
        self,
        claims: ClaimManager,
        heartbeat: Heartbeat,
        policy: Policy,
        verdicts: ErrorRegistry,
        *,
        best_effort: bool = False,
    ) -> None:
        self.claims = claims
        self.policy = policy
        self._heartbeat = heartbeat
        self._verdicts = verdicts
        self._best_effort = best_effort

    def run(self, request: ClaimRequest, work: Callable[[], Any], results: ResultType) -> Operation[Any]:
        """Do the work if it was not done before; otherwise return what the first call returned."""
        outer = enclosing_claim(request.at.space, self.claims.store)
        if outer is not None:
            refuse_other_payload(outer.request, request)
            return _value_of((yield from UserCall(work)))
        results.prepare()
        entered = yield from self.enter(request, results)
        if isinstance(entered, PriorResult):
            return entered.value
        yield from entered.begin()
        try:
            finding: Returned | Raised = yield UserCall(work)
        finally:
            entered.end()
        return (yield from self.leave(entered, finding, results))

    # -- before the work -------------------------------------------------------------------------

    def enter(self, request: ClaimRequest, results: ResultType) -> Operation[ClaimScope | PriorResult]:
        """Take the claim, or return the result of the call that has done the work. Raises if there is neither."""
        policy = self.policy
        if self.claims.store.best_effort and policy.repeat == "never" and not self._best_effort:
            raise unsafe_store(f"{policy.operation} may never be repeated blindly", declare='repeat="safe"')
        scope = ClaimScope(self.claims, self._heartbeat, request)
        outcome = yield from scope.enter()
        if isinstance(outcome, Held):
            return scope
        if not isinstance(outcome, _NOT_DUPLICATES):
            self.claims.duplicates.blocked(request.operation, request.key, tenant=request.tenant)
        if isinstance(outcome, Busy) and policy.on_duplicate == "wait":
            outcome = yield from scope.wait(outcome)
        if isinstance(outcome, Done):
            return (yield from self._prior(request, outcome, results))
        if isinstance(outcome, Held):  # after waiting
            return scope
        if isinstance(outcome, LostHold):
            raise claim_lost(scope.hold, outcome, BEFORE)
        raise refusal(request, outcome)

    def _prior(self, ask: ClaimRequest, done: Done, results: ResultType) -> Operation[PriorResult]:
        text = yield from unpack(self.claims.store, done.at, done.result, done.spill)
        try:
            value = results.restore(text, loose=done.loose) if text else None
        except Misfit as misfit:
            raise no_longer_fits(ask, done, str(misfit)) from None
        if self.policy.on_duplicate == "reject":
            raise duplicate(ask, done, value, own=bool(text))
        if not text:
            raise result_not_kept(ask, done)
        return PriorResult(value)

    # -- after the work --------------------------------------------------------------------------

    def leave(self, scope: ClaimScope, finding: Returned | Raised, results: ResultType) -> Operation[Any]:
        """Record how the work ended; return its result, or raise its error."""
        if scope.hold.lost is INHERITED:
            return _value_of(finding)
        if isinstance(finding, Returned):
            return (yield from self._complete(scope, finding.value, results))
        try:
            doubt = yield from self._fail(scope, finding.error)
        except StoreError as error:
            finding.error.add_note(f"twiceproof could not record this failure: {error}")
            doubt = None
        if doubt is None or not isinstance(finding.error, Exception):
            raise carry_stop_iteration(finding.error)
        raise doubt from finding.error

    def _complete(self, scope: ClaimScope, value: Any, results: ResultType) -> Operation[Any]:
        packed = pack(value, scope.hold.held, large=self.policy.large)
        try:
            answer = yield from scope.complete(packed, self.policy.life, unfit=not results.fits(packed))
        except StoreError as error:
            error.add_note(f"The work of {named(scope.request)} was done; only its record is in doubt.")
            raise
        if isinstance(answer, LostHold):
            raise claim_lost(scope.hold, answer, DURING)
        results.warn_if_lossy(value, packed)
        text = packed.inline or packed.text
        return results.restore(text, loose=True) if text else value

    def _fail(self, scope: ClaimScope, error: BaseException) -> Operation[NeedsReview | None]:
        """Record the failure. Returns the error to raise instead, where it is unknown whether the work was done."""
        verdict = self._verdicts.judge(error, self.policy.not_done)
        if verdict not in CLEAN_VERDICTS and self.policy.repeat != "safe":
            fault = fault_of(error)
            parked = yield from scope.park(fault, unknown_after(fault))
            return None if isinstance(parked, LostHold) else in_doubt(scope.request, fault)
        if self.policy.on_failure == "release":
            yield from scope.release()
        else:
            yield from scope.fail(fault_of(error, retryable=verdict != "final"), self.policy.life)
        return None


def _value_of(finding: Returned | Raised) -> Any:
    if isinstance(finding, Raised):
        raise carry_stop_iteration(finding.error)
    return finding.value
