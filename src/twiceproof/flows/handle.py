"""Handle: one run, from any process. It reads the store each time and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..claims.claim import (
    HELD,
    REVIEW,
    Busy,
    Done,
    Failed,
    InReview,
    Parked,
    TakeOutcome,
    parse_space,
    run_id,
    shown_id,
)
from ..claims.results import Misfit, ResultType, unpack
from ..claims.states import is_expired, is_lapsed, outcome_of
from ..errors import Misuse, NeedsReview, PriorFailure, ResultNotKept, Waiting
from ..operations import Operation, await_, block
from ..records import Address, Found, Record
from ..safe_text import suggested_command
from .engine.compensation import cancel
from .engine.context import current_session, driven, plain_session, session_var
from .engine.guarded_calls import ASK_AGAIN
from .ordering.ordered_runs import stale, stale_error
from .runtime import Runtime
from .step import Step

if TYPE_CHECKING:
    from .engine.session import Session

__all__ = ["AsyncRunHandle", "AttachedHandle", "Handle", "RunHandle", "handle_for"]


LONGEST_PAUSE = 1.0
R_co = TypeVar("R_co", covariant=True)


class Handle:
    """The operations of a handle; `RunHandle` and `AsyncRunHandle` drive them."""

    def __init__(self, runtime: Runtime, at: Address, results: ResultType) -> None:
        self.runtime = runtime
        self.at = at
        self.results = results

    @property
    def id(self) -> str:
        return shown_id(self.at)

    def state(self) -> Operation[str]:
        """queued, held (a process is at work), lapsed, waiting, done, failed or review; "" if there is no such run."""
        found = yield from self.runtime.store.read(self.at)
        if found.record is None or is_expired(found.record, found.now):
            return ""
        lapsed = found.record.state == HELD and is_lapsed(found.record, found.now)
        return "lapsed" if lapsed else found.record.state

    def result(self, timeout: float | None = None) -> Operation[Any]:
        """Wait for the run's result."""
        clock = self.runtime.clock
        until = None if timeout is None else clock.monotonic() + timeout
        while True:
            outcome = yield from self._outcome()
            if not isinstance(outcome, Busy | Parked):
                return (yield from self._result_of(outcome))
            left = LONGEST_PAUSE if until is None else until - clock.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"{self.id} did not end within {timeout:g} s; ask again, or look: {self._show('runs')}"
                )
            yield from self.runtime.store.pause(self.at.space, min(left, LONGEST_PAUSE))

    def result_now(self) -> Operation[Any]:
        """Return the result, or raise Waiting: the calling run is then suspended, and woken at the end of this one."""
        outcome = yield from self._outcome()
        if not isinstance(outcome, Busy | Parked):
            return (yield from self._result_of(outcome))
        parked = outcome if isinstance(outcome, Parked) else Parked(HELD, "is being worked on", self.id)
        waiting = Waiting(
            f"{self.id} is under way; look at it with: twiceproof runs show {self.id}",
            run=self.id,
            state=parked.state,
            until=parked.until,
            why=parked.why,
        )
        waiting.reference = run_id(self.at.space)
        raise waiting

    def cancel(self, by: str = "") -> Operation[str]:
        """Stop the run before its next step, and undo its completed steps. Return the state that it is in then."""
        return cancel(self.runtime.store, self.at, by or self.runtime.owner(), self.runtime.life_of(self.at))

    def _outcome(self) -> Operation[TakeOutcome]:
        found = yield from self.runtime.store.read(self.at)
        return outcome_of(self._existing(found), found.now)

    def _result_of(self, outcome: TakeOutcome) -> Operation[Any]:
        if isinstance(outcome, Done):
            return (yield from self._value(outcome))
        if isinstance(outcome, Failed):
            raise self._failed(outcome)
        assert isinstance(outcome, InReview)  # noqa: S101 - a read returns nothing else
        raise self._in_review(outcome)

    def _existing(self, found: Found) -> Record:
        if found.record is None or is_expired(found.record, found.now):
            raise Misuse(
                f"There is no run {self.id}; list them with: {suggested_command(*self.runtime.where, 'runs', 'list')}"
            )
        return found.record

    def _show(self, noun: str) -> str:
        """Return the command that shows the run, with the store that it is in."""
        return suggested_command(*self.runtime.where, noun, "show", self.id)

    def _value(self, done: Done) -> Operation[Any]:
        if (superseded := stale(done)) is not None:
            _, operation, key = parse_space(self.at.space)
            raise stale_error(operation, key, self.id, superseded, self.runtime.where)
        text = yield from unpack(self.runtime.store, done.at, done.result, done.spill)
        if not text:
            raise ResultNotKept(
                f"{self.id} is done, but its result is not kept. Look: {self._show('runs')}", run=self.id
            )
        try:
            return self.results.restore(text, loose=done.loose)
        except Misfit as misfit:
            raise NeedsReview(
                f"{self.id} is done, but {misfit}. Give what is new in that type a default; see what is on record: "
                f"{self._show('runs')}",
                run=self.id,
                reason=str(misfit),
            ) from None

    def _failed(self, failed: Failed) -> PriorFailure:
        fault = failed.fault
        return PriorFailure(
            f"{self.id} failed with {fault.type}: {fault.message}; what can be done: {self._show('runs')}",
            run=self.id,
            fault=fault,
            error=f"{fault.type}: {fault.message}",
        )

    def _in_review(self, review: InReview) -> NeedsReview:
        reason = review.reason.rstrip(".")
        error = NeedsReview(
            f"{self.id} waits for a person: {reason}. Look at it with: {self._show('review')}",
            run=self.id,
            state=REVIEW,
            reason=review.reason,
        )
        error.reference = run_id(self.at.space)
        return error


class AnyHandle:
    """What handles have in common, whichever way their caller waits."""

    def __init__(self, handle: Handle, drive: Any) -> None:
        self._handle = handle
        self._drive = drive

    @property
    def id(self) -> str:
        return self._handle.id

    @property
    def key(self) -> str:
        return parse_space(self._handle.at.space).key

    def _state(self) -> Any:
        return self._drive(self._handle.state())

    def _result(self, timeout: float | None) -> Any:
        session = self._calling_run() if timeout is None else None
        if session is None:
            return self._drive(self._handle.result(timeout))
        return driven(self._drive, "handle.result", session.step(_result_step(self._handle, self._drive), (), {}))

    def _calling_run(self) -> Session | None:
        """Return the calling run if it can be suspended and woken: not in a step, nor for a run of another store."""
        around = session_var.get()
        if around is None or not around.open or around.runtime.store is not self._handle.runtime.store:
            return None
        return plain_session("handle.result") if self._drive is block else current_session()

    def _cancel(self, by: str) -> Any:
        return driven(self._drive, "handle.cancel", self._handle.cancel(by))

    def __repr__(self) -> str:
        return f"<run {self.id}>"


class RunHandle(AnyHandle, Generic[R_co]):
    """What `.start()` of a `def` flow returns."""

    @property
    def state(self) -> str:
        """queued, held (a process is at work), lapsed, waiting, done, failed or review; "" if there is no such run."""
        return cast(str, self._state())

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the result. In a flow, without a time-out, it is a step, and the flow is suspended meanwhile."""
        return cast(R_co, self._result(timeout))

    def cancel(self, by: str = "") -> str:
        """Stop the run before its next step, and undo its completed steps. Return the state that it is in then."""
        return cast(str, self._cancel(by))


class AsyncRunHandle(AnyHandle, Generic[R_co]):
    """What `await flow.start()` of an `async def` flow returns: all but `id` and `key` is awaited, `state` too."""

    @property
    def state(self) -> Coroutine[Any, Any, str]:
        """queued, held (a process is at work), lapsed, waiting, done, failed or review; "" if there is no such run."""
        return cast("Coroutine[Any, Any, str]", self._state())

    def result(self, timeout: float | None = None) -> Coroutine[Any, Any, R_co]:
        """Wait for the result. In a flow, without a time-out, it is a step, and the flow is suspended meanwhile."""
        return cast("Coroutine[Any, Any, R_co]", self._result(timeout))

    def cancel(self, by: str = "") -> Coroutine[Any, Any, str]:
        """Stop the run before its next step, and undo its completed steps. Return the state that it is in then."""
        return cast("Coroutine[Any, Any, str]", self._cancel(by))


def handle_for(handle: Handle, drive: Any) -> RunHandle[Any] | AsyncRunHandle[Any]:
    """Return the handle for a caller that waits by `drive`."""
    return AsyncRunHandle(handle, drive) if drive is await_ else RunHandle(handle, drive)


def _result_step(handle: Handle, drive: Any) -> Step:
    """Make a step of the calling flow, so that a replay gets the same result."""
    place = handle.at.space.partition("/")[2]

    def blocking() -> Any:
        return block(handle.result_now())

    async def awaiting() -> Any:
        return await await_(handle.result_now())

    step = Step(
        blocking if drive is block else awaiting, ASK_AGAIN, name="result", own_id=lambda: place, guards_itself=True
    )
    step.results = handle.results
    return step


class AttachedHandle(RunHandle[Any]):
    """What `app.attach` returns. It blocks; `await app.attach(…)` returns a handle whose methods are awaited.

    The flow's own kind does not decide: a `def` program may look at a run of an `async def` flow, and the reverse.
    """

    def __init__(self, handle: Handle | Callable[[], Operation[Handle]], run: str = "") -> None:
        self._found = handle  # or the operation that looks it up, when it is first needed
        self._drive = block
        self._run = run

    @property
    def id(self) -> str:
        return self._run or super().id

    @property
    def _handle(self) -> Handle:  # type: ignore[override]
        if not isinstance(self._found, Handle):
            self._found = block(self._found())
        return self._found

    def __await__(self) -> Generator[Any, Any, AsyncRunHandle[Any]]:
        return self._awaiting().__await__()

    async def _awaiting(self) -> AsyncRunHandle[Any]:
        if not isinstance(self._found, Handle):
            self._found = await await_(self._found())
        return AsyncRunHandle(self._found, await_)
