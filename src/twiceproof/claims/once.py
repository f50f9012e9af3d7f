"""Work under a claim: take, work, record; and what runs so: @app.once and `with app.claim(…)`.

One generator serves `def` and `async def` alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from types import CoroutineType, TracebackType
from typing import Any

from msgspec import Struct

from ..clock import Ids
from ..errors import Misuse, NeedsReview, NotDone, StoreError
from ..operations import (
    Operation,
    Raised,
    Returned,
    StopIterationCarrier,
    UserCall,
    await_,
    block,
    carry_stop_iteration,
)
from .claim import Busy, Done, Held, LostHold, Mismatch, TakeOutcome
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
from .request import ClaimRequestFactory, Link
from .results import Misfit, ResultType, only_described, pack, unpack
from .states import ClaimRequest

__all__ = ["ClaimBlock", "Guard", "Link", "Once", "PriorResult", "refuse_generators"]


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

    def _prior(self, request: ClaimRequest, done: Done, results: ResultType) -> Operation[PriorResult]:
        text = yield from unpack(self.claims.store, done.at, done.result, done.spill)
        try:
            value = results.restore(text, loose=done.loose) if text else None
        except Misfit as misfit:
            raise no_longer_fits(request, done, str(misfit)) from None
        if self.policy.on_duplicate == "reject":
            raise duplicate(request, done, value, own=bool(text))
        if not text:
            raise result_not_kept(request, done)
        return PriorResult(value)

    # -- after the work --------------------------------------------------------------------------

    def leave(self, scope: ClaimScope, finding: Returned | Raised, results: ResultType) -> Operation[Any]:
        """Record how the work ended; return its result, or raise its error."""
        if scope.hold.lost is INHERITED:
            return _value_of(finding)
        if isinstance(finding, Returned):
            if not (told := only_described(finding.value)):
                return (yield from self._complete(scope, finding.value, results))
            finding = Raised(Misuse(f"{self.policy.operation}: {told}."))
        try:
            doubt = yield from self._fail(scope, finding.error)
        except StoreError as error:
            finding.error.add_note(f"twiceproof could not record this failure: {error}")
            doubt = None
        if doubt is None or not isinstance(finding.error, Exception):
            raise carry_stop_iteration(finding.error)
        raise doubt from finding.error

    def _complete(self, scope: ClaimScope, value: Any, results: ResultType) -> Operation[Any]:
        packed = pack(value, scope.hold.held, large=self.policy.large, most=self.claims.result_limit)
        try:
            answer = yield from scope.complete(packed, self.policy.life, mistyped=not results.fits(packed))
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


def _plain() -> object:
    """The function of an inline claim, which declares no result type: results come back as plain JSON."""


class ClaimBlock:
    """`with app.claim(…)`: `held` says whether the work is to be done here; `result` is recorded at the end."""

    def __init__(self, guard: Guard, request: ClaimRequest) -> None:
        self._guard = guard
        self._request = request
        self._results = ResultType(_plain, request.operation)
        self._scope: ClaimScope | None = None
        self._entered = False
        self._nested = False
        self.result: Any = None

    @property
    def held(self) -> bool:
        """Whether the work of this block is to be done here."""
        return self._scope is not None or self._nested

    @property
    def key(self) -> str:
        """The key, in Unicode's normal form."""
        return self._request.key

    @property
    def run(self) -> str:
        """The id under which the claim is found in lists."""
        return self._request.run

    @property
    def lost(self) -> bool:
        """Whether the claim may have been taken over: stop before the next effect.

        True when a heartbeat has found so, and when the lease has run out without a successful heartbeat.
        """
        if self._scope is None:
            return False
        hold = self._scope.hold
        return hold.lost is not None or (hold.active and self._guard.claims.clock.monotonic() >= hold.held.deadline)

    @property
    def attempt(self) -> int:
        """The attempt number; 0 if the claim is not held here."""
        return self._scope.hold.held.attempt if self._scope else 0

    def __enter__(self) -> ClaimBlock:
        return block(self._enter())

    async def __aenter__(self) -> ClaimBlock:
        return await await_(self._enter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block(self._leave(error))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):  # the coroutine is being thrown away and cannot wait: the lease lapses
            if self._scope is not None:
                self._scope.end()
            return
        await await_(self._leave(error))

    def _enter(self) -> Operation[ClaimBlock]:
        if self._entered:
            raise Misuse("A claim is entered once; make a new one with app.claim(…).")
        self._entered = True
        outer = enclosing_claim(self._request.at.space, self._guard.claims.store)
        if outer is not None and not self._request.reentrant:  # part of the work around it, which records the result
            refuse_other_payload(outer.request, self._request)
            self._nested = True
            return self
        self._results.prepare()
        entered = yield from self._guard.enter(self._request, self._results)
        if isinstance(entered, PriorResult):
            self.result = entered.value
            return self
        yield from entered.begin()
        self._scope = entered
        return self

    def _leave(self, error: BaseException | None) -> Operation[None]:
        scope = self._scope
        if scope is None:
            return
        scope.end()
        if error is None:
            self.result = yield from self._guard.leave(scope, Returned(self.result), self._results)
            return
        try:
            yield from self._guard.leave(scope, Raised(error), self._results)
        except StopIterationCarrier:  # the block's own error goes on by itself
            return
        except BaseException as same:
            if same is not error:
                raise


class Once:
    """One guarded function."""

    def __init__(
        self,
        function: Callable[..., Any],
        guard: Guard,
        *,
        key: str | Callable[..., str],
        owner: Ids,
        stable: Collection[str] = (),
        link: Link = None,
    ) -> None:
        refuse_generators(function)
        self.function = function
        self.guard = guard
        self.policy = guard.policy
        clock = guard.claims.clock
        self.claim_requests = ClaimRequestFactory(
            function, guard.policy, key=key, owner=owner, clock=clock, stable=stable, link=link
        )
        self._results = ResultType(function, self.policy.operation)
        self._awaited = inspect.iscoroutinefunction(function)

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, tenant: str | None = None, retry: bool = False
    ) -> Operation[Any]:
        """Call the function under its claim, for `tenant` or the one it was declared for.

        `retry`: run again what has failed for good.
        """
        request = self.claim_requests.request(
            self.claim_requests.arguments.bind(args, kwargs), tenant=tenant, retry=retry
        )
        return self.guard.run(request, lambda: self._work(args, kwargs), self._results)

    def _work(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = self.function(*args, **kwargs)
        if type(value) is CoroutineType and not self._awaited:
            value.close()  # work that has not begun: recorded as done, it would be lost
            raise NotDone(f"{self.policy.operation} is a def that returns a coroutine; guard an `async def` instead.")
        return value

    def look(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, tenant: str | None = None
    ) -> Operation[TakeOutcome | None]:
        """Return what the claim of these arguments is now."""
        return self.guard.claims.look(self.claim_requests.address(self.key(args, kwargs), tenant))

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.claim_requests.key(args, kwargs)

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClaimRequest:
        """Return the claim request of a call, for the tenant it was declared for."""
        return self.claim_requests.request(self.claim_requests.arguments.bind(args, kwargs))


def refuse_generators(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Misuse(f"{function.__qualname__} is a generator, whose work has no single result; return a list instead.")
