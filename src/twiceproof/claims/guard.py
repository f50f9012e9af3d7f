"""Runs work under a claim: take, work, record. One generator for `def` and `async def` alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from ..errors import NeedsReview, StoreError, StoreUnsafe
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
)
from .held_claim import INHERITED, Heartbeat, HeldClaim, enclosing_claim, enter_claim, exit_claim
from .manager import ClaimManager
from .policy import Policy
from .results import Misfit, ResultType, pack, unpack
from .states import ClaimRequest, claim_for

__all__ = ["Guard", "PriorResult"]


FIRST_PAUSE = 0.05
LONGEST_PAUSE = 0.5


class PriorResult(Struct, frozen=True):
    """The answer to a duplicate: what the first one returned."""

    value: Any


class Guard:
    """One operation's guard. Holds no state between calls: everything rests in the store."""

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

    def of(self, policy: Policy) -> Guard:
        """The same for another tenant's policy."""
        return Guard(self.claims, self._heartbeat, policy, self._verdicts, best_effort=self._best_effort)

    def run(self, ask: ClaimRequest, work: Callable[[], Any], results: ResultType) -> Operation[Any]:
        """Do the work if it was not done before; otherwise answer with what the first one returned."""
        outer = enclosing_claim(ask.at.space, self.claims.store)
        if outer is not None:
            refuse_other_payload(outer.ask, ask)
            return _value_of((yield from UserCall(work)))
        results.prepare()
        taken = yield from self.enter(ask, results)
        if isinstance(taken, PriorResult):
            return taken.value
        try:
            self.begin(taken)
        except BaseException:  # no thread to be had: nothing was done yet, so give it back
            yield from self.claims.release(taken.held)
            raise
        try:
            finding: Returned | Raised = yield UserCall(work)
        finally:
            self.end(taken)
        return (yield from self.leave(taken, finding, results))

    def begin(self, hold: HeldClaim) -> None:
        """The work starts: keep its claim alive, and know who is inside. If it raises, release the claim."""
        self._heartbeat.keep(hold)
        enter_claim(hold, self.claims.store)

    def end(self, hold: HeldClaim) -> None:
        self._heartbeat.drop(hold)
        exit_claim(hold)

    # -- before the work -------------------------------------------------------------------------

    def enter(self, ask: ClaimRequest, results: ResultType) -> Operation[HeldClaim | PriorResult]:
        self._refuse_best_effort()
        pause = FIRST_PAUSE
        blocked = False
        while True:
            outcome = yield from self.claims.take(ask)
            if isinstance(outcome, Held):
                hold = HeldClaim(ask, outcome)
                if self.claims.clock.monotonic() >= outcome.deadline:
                    yield from self._ask_once_more(hold)
                return hold
            if not blocked and not isinstance(outcome, Mismatch):
                blocked = True
                self.claims.duplicates.blocked(ask.operation, ask.key, tenant=ask.tenant)
            if isinstance(outcome, Done):
                return (yield from self._prior(ask, outcome, results))
            if not isinstance(outcome, Busy) or self.policy.on_duplicate != "wait":
                raise refusal(ask, outcome)
            yield from self.claims.store.pause(ask.at.space, min(pause, outcome.retry_after + 0.001))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _refuse_best_effort(self) -> None:
        if self.claims.store.best_effort and self.policy.repeat == "never" and not self._best_effort:
            raise StoreUnsafe(
                f"{self.policy.operation} may never be repeated blindly, but this store can lose acknowledged "
                'writes on failover; use PostgreSQL or SQLite, declare repeat="safe", or accept it with '
                "App(best_effort=True)."
            )

    def _ask_once_more(self, hold: HeldClaim) -> Operation[None]:
        """Nothing acts past its own deadline: a process that slept through its lease asks whether it still holds."""
        renewed = yield from self.claims.renew(hold.held)
        if isinstance(renewed, LostHold):
            raise claim_lost(hold, renewed, BEFORE)
        hold.held = renewed

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

    def leave(self, hold: HeldClaim, finding: Returned | Raised, results: ResultType) -> Operation[Any]:
        if hold.lost is INHERITED:
            return _value_of(finding)
        if isinstance(finding, Returned):
            return (yield from self._complete(hold, finding.value, results))
        try:
            doubt = yield from self._fail(hold, finding.error)
        except StoreError as error:
            finding.error.add_note(f"twiceproof could not record this failure: {error}")
            doubt = None
        if doubt is None or not isinstance(finding.error, Exception):
            raise carry_stop_iteration(finding.error)
        raise doubt from finding.error

    def _complete(self, hold: HeldClaim, value: Any, results: ResultType) -> Operation[Any]:
        claim = claim_for(hold.ask, hold.held.attempt)
        packed = pack(value, hold.held, large=self.policy.large)
        if not results.fits(packed):
            claim = structs.replace(claim, unfit=True)
        try:
            answer = yield from self.claims.complete(hold.held, claim, packed, self.policy.life)
        except StoreError as error:
            error.add_note(f"The work of {named(hold.ask)} was done; only its record is in doubt.")
            raise
        if isinstance(answer, LostHold):
            raise claim_lost(hold, answer, DURING)
        results.mind(value, packed)
        text = packed.inline or packed.text
        return results.restore(text, loose=True) if text else value

    def _fail(self, hold: HeldClaim, error: BaseException) -> Operation[NeedsReview | None]:
        """What the caller hears instead of the error, if that does not tell whether the work was done."""
        verdict = self._verdicts.judge(error, self.policy.not_done)
        claim = claim_for(hold.ask, hold.held.attempt)
        if verdict not in CLEAN_VERDICTS and self.policy.repeat != "safe":
            fault = fault_of(error)
            parked = yield from self.claims.park(hold.held, claim, fault, unknown_after(fault))
            return None if isinstance(parked, LostHold) else in_doubt(hold.ask, fault)
        if self.policy.on_failure == "release":
            yield from self.claims.release(hold.held)
        else:
            yield from self.claims.fail(
                hold.held, claim, fault_of(error, retryable=verdict != "final"), self.policy.life
            )
        return None


def _value_of(finding: Returned | Raised) -> Any:
    if isinstance(finding, Raised):
        raise carry_stop_iteration(finding.error)
    return finding.value
