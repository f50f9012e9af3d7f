"""Calling a flow here, and starting its runs: `flow(…)`, `flow.start(…)`, `flow.start_many(…)`."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

from msgspec import Raw

from ..claims.claim import HELD, REVIEW, Busy, Done, InReview, Mismatch, Parked, TakeOutcome, alone, claim_of, shown_run
from ..claims.error_messages import duplicate, no_longer_fits, refusal, result_not_kept, waiting
from ..claims.held_claim import HeldClaim
from ..claims.policy import Duration
from ..claims.results import Misfit, unpack
from ..claims.retention import forget
from ..claims.states import AnswerOnly, ClaimRequest, first_pointer, is_expired
from ..errors import Misuse, NeedsReview, StepFailed, Waiting
from ..keys.duration import seconds
from ..operations import Operation, Raised, Request, Returned, Sleep, await_, block, carry_stop_iteration
from ..records import Written
from ..safe_text import suggested_command
from .engine.compensation import refuse_undone
from .engine.context import as_coroutine_function, noted, parent_of_new_run, patience_around
from .engine.exits import Ended, Finished, HandedBack, RunFailed, Superseded, Suspended
from .engine.run_states import Leftover, RunRequest, decide_run, enqueue, work_of
from .engine.runner import RunExecution
from .flow import Flow
from .handle import AsyncRunHandle, Handle, RunHandle, handle_for
from .limits import Entered, FlowLimits, holding
from .ordering.ordered_runs import stale, stale_error

__all__ = ["call", "start_function", "start_many_function"]


FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5  # seconds
CALLER_PATIENCE = 5.0  # seconds that a caller waits for a retry in place; later retries are left to workers


def call(flow: Flow, args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False) -> Operation[Any]:
    """Run a flow here, or return the result of its earlier run."""
    flow, paused = yield from _on_live_version(flow)
    request, work = yield from flow.request(args, kwargs, retry=retry)
    if retry:
        yield from refuse_undone(flow.runtime.store, request.at, request.where)
    flow.results.prepare()
    called = FlowCall(flow, request, work)
    if paused:
        yield from called.leave_to_worker_if_open()
    if flow.limits is None:
        return (yield from called.result())
    return (yield from called.limited_result(flow.limits, flow.seen(flow.claim_requests.arguments.bind(args, kwargs))))


def _on_live_version(flow: Flow) -> Operation[tuple[Flow, bool]]:
    """Return the flow that a call runs on, and whether it is paused."""
    if flow.releases is None:
        return flow, False
    return (yield from flow.for_new_run()), (yield from flow.releases.is_paused(flow))


class FlowCall:
    """One call of a flow, which waits for one run."""

    def __init__(self, flow: Flow, request: ClaimRequest, work: Raw) -> None:
        self._flow = flow
        self._runtime = flow.runtime
        self._request = request
        self._work = work

    def result(self, slots: Sequence[HeldClaim] = ()) -> Operation[Any]:
        entered = yield from self._enter(slots)
        if not isinstance(entered, RunExecution):
            return entered[0]
        return self._answer((yield from entered.run()))

    def limited_result(self, limits: FlowLimits, arguments: dict[str, Any]) -> Operation[Any]:
        """Wait in place until the limits admit the run; inside another run only briefly. An earlier result needs no
        slot."""
        patience, waited = patience_around(), 0.0
        while True:
            found = yield from self._runtime.store.read(self._request.at)
            move = decide_run(self._run_ask(), found.record, found.now)
            if isinstance(move, AnswerOnly) and not isinstance(move, Leftover) and not self._waits_for(move.outcome):
                return (yield from self._earlier_result(move.outcome))
            begins = found.record is None or isinstance(move, Leftover) or claim_of(found.record).attempt == 0
            entered = yield from limits.enter(self._runtime, arguments, begins=begins)
            if isinstance(entered, Entered):
                return (yield from holding(self._runtime, entered.holds, self.result(entered.holds)))
            if (entered.ours or waited >= patience) and not self._request.retry:
                yield from self._leave_to_worker()
            pause = min(entered.seconds, LONGEST_PAUSE)
            waited += pause
            yield Sleep(self._runtime.clock, pause)

    def _run_ask(self) -> RunRequest:
        return RunRequest(self._request, self._work, self._flow.versions)

    def leave_to_worker_if_open(self) -> Operation[None]:
        """Of a paused flow: queue a run that would begin or continue here, and raise Waiting. Earlier results are still
        returned."""
        found = yield from self._runtime.store.read(self._request.at)
        move = decide_run(self._run_ask(), found.record, found.now)
        if not isinstance(move, AnswerOnly) or isinstance(move, Leftover):
            yield from self._leave_to_worker()

    def _leave_to_worker(self) -> Operation[None]:
        """Queue the run and raise Waiting, because the calling run holds slots until it is suspended.

        If it needed one of those itself, or the holder of the slot that it needs did, it would wait for ever.
        """
        insert = enqueue(self._request, self._work, 0.0)
        written = yield from self._runtime.store.write(insert, *alone(insert), also=first_pointer(insert))
        found = None if isinstance(written, Written) else written.found
        if found is None or not is_expired(found, written.now):
            raise self._waiting(Parked("queued", "waits for its turn", self._request.run))
        yield from forget(self._runtime.store, found)

    def _enter(self, slots: Sequence[HeldClaim]) -> Operation[RunExecution | tuple[Any]]:
        """Return a run that is ours, or the result of an earlier one (in a tuple: it may be anything)."""
        self._flow.refuse_best_effort()
        execution = RunExecution(self._flow, self._run_ask(), CALLER_PATIENCE, slots)
        pause = FIRST_PAUSE
        while True:
            outcome = yield from execution.take()
            if outcome is None:
                return execution
            if not self._waits_for(outcome):
                return ((yield from self._earlier_result(outcome)),)
            yield from self._runtime.store.pause(self._request.at.space, min(pause, outcome.retry_after + 0.001))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _waits_for(self, outcome: TakeOutcome) -> TypeGuard[Busy]:
        return isinstance(outcome, Busy) and self._flow.policy.on_duplicate == "wait"

    # -- the result of an earlier run ------------------------------------------------------------

    def _earlier_result(self, outcome: Any) -> Operation[Any]:
        """Return what an earlier run returned. Raises if it has no result, or none yet."""
        request = self._request
        if not isinstance(outcome, Mismatch | Parked):  # Waiting asks callers of a parked run to call again
            self._runtime.claims.duplicates.blocked(self._flow.name, request.key, tenant=request.tenant)
        if isinstance(outcome, Done):
            return (yield from self._prior(outcome))
        if isinstance(outcome, Parked):
            raise self._waiting(outcome)
        if isinstance(outcome, InReview):
            raise self._in_review(outcome.reason)
        error = refusal(request, outcome)
        if isinstance(outcome, Busy):
            error.data["state"] = HELD  # it is a run and not a claim: a run that waits for it is woken at its end
        raise error

    def _prior(self, done: Done) -> Operation[Any]:
        flow, request = self._flow, self._request
        if (superseded := stale(done)) is not None:
            raise stale_error(flow.name, request.key, request.run, superseded, request.where)
        text = yield from unpack(self._runtime.store, done.at, done.result, done.spill)
        try:
            value = flow.results.restore(text, loose=done.loose) if text else None
        except Misfit as misfit:
            raise no_longer_fits(request, done, str(misfit)) from None
        if flow.policy.on_duplicate == "reject" and not (yield from self._is_ours()):
            raise duplicate(request, done, value)
        if not text:
            raise result_not_kept(request, done)
        return value

    def _is_ours(self) -> Operation[bool]:
        """Whether the calling run began it: called again after a crash, it must get that run's result."""
        outer = parent_of_new_run()
        record = (yield from self._runtime.store.read(self._request.at)).record if outer else None
        return record is not None and work_of(claim_of(record)).parent == outer

    # -- the result of our own run ---------------------------------------------------------------

    def _answer(self, ended: Ended) -> Any:
        if isinstance(ended, Finished):
            return ended.value
        if isinstance(ended, HandedBack | Superseded):
            raise carry_stop_iteration(ended.error)
        if isinstance(ended, RunFailed):
            raise carry_stop_iteration(_original(ended.error))
        if isinstance(ended, Suspended):
            raise self._waiting(Parked("waiting", ended.why, self._request.run, ended.until))
        raise self._in_review(ended.reason) from ended.error

    def _in_review(self, reason: str) -> NeedsReview:
        name, request = self._flow.name, self._request
        run = shown_run(request.run)
        error = NeedsReview(
            f"{name} for {request.key!r} waits for a person: {reason.rstrip('.')}. Look at it with: "
            f"{suggested_command(*request.where, 'review', 'show', run)}",
            operation=name,
            key=request.key,
            run=run,
            state=REVIEW,
            reason=reason,
        )
        error.reference = request.run
        return error

    def _waiting(self, parked: Parked) -> Waiting:
        error = waiting(self._request, parked)
        error.data["handle"] = handle_for(self._flow.handle(self._request.key), self._flow.drive)
        return error


def _original(error: BaseException) -> BaseException:
    """Return what the step itself raised, if that was in this process."""
    if isinstance(error, StepFailed) and error.__cause__ is not None:
        return error.__cause__
    return error


MOST_AT_ONCE = 32  # concurrent starts: their writes meet in one group commit
DELAY = "delay"
Given = tuple[tuple[Any, ...], dict[str, Any]]


def start_function(flow: Flow) -> Callable[..., Any]:
    """Make `flow.start`. `delay=` is an option of it, unless the flow has a parameter of that name."""

    def operation(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation[Handle]:
        given = DELAY in kwargs and DELAY not in flow.inputs.names
        delay = _seconds(kwargs.pop(DELAY)) if given else 0.0
        return flow.here().start(args, kwargs, validate_now=True, delay=delay)

    if flow.drive is await_:

        async def work(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncRunHandle[Any]:
            return AsyncRunHandle(await await_(operation(args, kwargs)), await_)

        @as_coroutine_function
        def awaited(*args: Any, **kwargs: Any) -> Any:
            return noted(f"{flow.name}.start", lambda: work(args, kwargs))

        return awaited

    def start(*args: Any, **kwargs: Any) -> RunHandle[Any]:
        return RunHandle(block(operation(args, kwargs)), block)

    return start


def start_many_function(flow: Flow) -> Callable[..., Any]:
    if flow.drive is await_:

        async def work(items: Iterable[Any], delay: Duration) -> list[AsyncRunHandle[Any]]:
            return [AsyncRunHandle(one, await_) for one in await await_(_start_many(flow, items, delay))]

        @as_coroutine_function
        def awaited(items: Iterable[Any], *, delay: Duration = 0.0) -> Any:
            return noted(f"{flow.name}.start_many", lambda: work(items, delay))

        return awaited

    def start_many(items: Iterable[Any], *, delay: Duration = 0.0) -> list[RunHandle[Any]]:
        return [RunHandle(one, block) for one in block(_start_many(flow, items, delay))]

    return start_many


def _seconds(delay: Duration) -> float:
    return seconds(delay, name=DELAY, positive=False)


def _start_many(flow: Flow, items: Iterable[Any], delay: Duration) -> Operation[list[Handle]]:
    """Make all keys before the first run is written: if one is refused, none is started."""
    here, later = flow.here(), _seconds(delay)
    calls = [_spread(flow, number, item) for number, item in enumerate(items, 1)]
    findings = yield from Starts([partial(here.start, *given, validate_now=True, delay=later) for given in calls])
    for number, finding in enumerate(findings, 1):
        if isinstance(finding, Raised):
            started = sum(isinstance(one, Returned) for one in findings)
            finding.error.add_note(
                f"This was item {number} of {len(findings)}. {started} are started; start_many again starts the others."
            )
            raise finding.error
    return [finding.value for finding in findings if isinstance(finding, Returned)]


def _spread(flow: Flow, number: int, item: Any) -> Given:
    """Return an item as arguments: whole for a single parameter, otherwise spread by name or in order."""
    names = flow.inputs.names
    given: Given = ((item,), {})
    if len(names) != 1:
        if isinstance(item, Mapping):
            given = (), dict(item)
        elif isinstance(item, tuple | list):
            given = tuple(item), {}
        else:
            raise Misuse(
                f"{flow.name} takes ({', '.join(names)}), and item {number} is a {type(item).__name__}; give a dict "
                "by these names, or a tuple in this order."
            )
    try:
        flow.key(*given)
    except TypeError as error:
        raise Misuse(f"{flow.name} takes ({', '.join(names)}), and item {number} does not fit: {error}.") from None
    return given


class Starts(Request[list[Returned | Raised]]):
    """Runs operations concurrently, all to their ends: on threads, or as tasks of an awaiting caller."""

    __slots__ = ("_make",)

    def __init__(self, make: Sequence[Callable[[], Operation[Any]]]) -> None:
        self._make = make

    def block(self) -> list[Returned | Raised]:
        if len(self._make) <= 1:
            return [_caught(make) for make in self._make]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(MOST_AT_ONCE, len(self._make)), thread_name_prefix="twiceproof-start") as threads:
            context = contextvars.copy_context()
            return list(threads.map(lambda make: context.copy().run(_caught, make), self._make))

    async def wait(self) -> list[Returned | Raised]:
        import asyncio

        turns = asyncio.Semaphore(MOST_AT_ONCE)

        async def one(make: Callable[[], Operation[Any]]) -> Returned | Raised:
            async with turns:
                try:
                    return Returned(await await_(make()))
                except Exception as error:  # noqa: BLE001 - the others are started all the same
                    return Raised(error)

        return list(await asyncio.gather(*map(one, self._make)))


def _caught(make: Callable[[], Operation[Any]]) -> Returned | Raised:
    try:
        return Returned(block(make()))
    except Exception as error:  # noqa: BLE001 - as above
        return Raised(error)
