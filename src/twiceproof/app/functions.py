"""Functions under @app.once, @app.flow and @app.step as their callers see them: their types, and the wrappers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from ..claims.claim import TakeOutcome
from ..claims.once import Once
from ..claims.policy import Duration
from ..effects.base import Effect
from ..effects.repeat import DEFAULT_RETRY, NEVER
from ..errors import Misuse
from ..flows.calls import call, start_function, start_many_function
from ..flows.engine.context import as_coroutine_function, current_session, driven, noted, plain_session
from ..flows.engine.decisions import StepPlan
from ..flows.engine.guarded_calls import guarded_wrapper
from ..flows.flow import Flow
from ..flows.handle import AsyncRunHandle, RunHandle
from ..flows.step import Step, StepFunction
from ..operations import await_, block

__all__ = [
    "AsyncFlowFunction",
    "AsyncOnceFunction",
    "EffectDecorator",
    "FlowDecorator",
    "FlowFunction",
    "OnceDecorator",
    "OnceFunction",
    "step_of",
    "undo_step",
    "wrapped_flow",
    "wrapped_step",
]


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class OnceFunction(Protocol[P, R_co]):
    """The type of a function under `@app.once`."""

    once: Once

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key of these arguments."""

    def look(self, *args: P.args, **kwargs: P.kwargs) -> TakeOutcome | None:
        """Return what the claim of these arguments is now: an outcome, or None. Writes nothing."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run again what failed for good."""


class AsyncOnceFunction(Protocol[P, R_co]):
    """The type of an `async def` under `@app.once`: all but `key` is awaited."""

    once: Once

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key of these arguments."""

    def look(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TakeOutcome | None]:
        """Return what the claim of these arguments is now: an outcome, or None. Writes nothing."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run again what failed for good."""


class OnceDecorator(Protocol):
    """The type of `@app.once(…)`: it takes `def` and `async def` alike."""

    @overload  # the first that fits counts
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncOnceFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> OnceFunction[P, R]: ...


class FlowFunction(Protocol[P, R_co]):
    """The type of a function under `@app.flow`."""

    flow: Flow

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R_co]: ...

    @overload
    def start(self, *args: Any, delay: Duration, **kwargs: Any) -> RunHandle[R_co]:
        """Queue a run for a worker and return its handle; with `delay`, it begins after that time."""

    def start_many(self, items: Iterable[Any], *, delay: Duration = ...) -> Sequence[RunHandle[R_co]]:
        """Queue a run per item: the one argument, or a dict or tuple of the arguments, of each."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run again a run that failed for good. Steps that are done are not repeated."""

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key of these arguments."""


class AsyncFlowFunction(Protocol[P, R_co]):
    """The type of an `async def` under `@app.flow`: all but `key` is awaited."""

    flow: Flow

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, AsyncRunHandle[R_co]]: ...

    @overload
    def start(self, *args: Any, delay: Duration, **kwargs: Any) -> Coroutine[Any, Any, AsyncRunHandle[R_co]]:
        """Queue a run for a worker and return its handle; with `delay`, it begins after that time."""

    def start_many(
        self, items: Iterable[Any], *, delay: Duration = ...
    ) -> Coroutine[Any, Any, Sequence[AsyncRunHandle[R_co]]]:
        """Queue a run per item: the one argument, or a dict or tuple of the arguments, of each."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run again a run that failed for good. Steps that are done are not repeated."""

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key of these arguments."""


class FlowDecorator(Protocol):
    """The type of `@app.flow(…)`: it takes `def` and `async def` alike."""

    @overload  # the first that fits counts
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncFlowFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> FlowFunction[P, R]: ...


class EffectDecorator(Protocol):
    """The type of `@app.effect(…)`: the function describes an effect, and its caller gets the effect's result."""

    @overload  # the first that fits counts
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, Effect[R]]], /
    ) -> StepFunction[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, function: Callable[P, Effect[R]], /) -> StepFunction[P, R]: ...


def undo_step(undo: Callable[..., Any] | None) -> Step | None:
    """Return the step that undoes another one. A plain function becomes a step that is never repeated blindly."""
    if undo is None:
        return None
    declared = getattr(undo, "step", None)
    return declared if isinstance(declared, Step) else Step(undo, StepPlan(NEVER, DEFAULT_RETRY), name="undo")


def wrapped_step(step: Step) -> Any:
    """Return the function that stands for a step: recorded in a flow, called as it is elsewhere."""
    function = step.function
    if step.is_async:

        async def work(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            session = current_session()
            if session is None:
                return await function(*args, **kwargs)
            return await await_(session.step(step, args, kwargs))

        @as_coroutine_function
        @functools.wraps(function)
        def awaiting(*args: Any, **kwargs: Any) -> Any:
            return noted(step.name, lambda: work(args, kwargs), names=(step.name,))

        awaiting.step = step  # type: ignore[attr-defined]
        return awaiting

    @functools.wraps(function)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        session = plain_session(step.name)
        if session is None:
            return function(*args, **kwargs)
        return block(session.step(step, args, kwargs))

    blocking.step = step  # type: ignore[attr-defined]
    return blocking


def wrapped_flow(flow: Flow) -> Any:
    """Return the function that stands for a flow, with `.start`, `.start_many`, `.retry` and `.key`."""
    wrapper = guarded_wrapper(flow.function, flow.name, _key_function(flow), lambda *given: call(flow.here(), *given))
    return _with_extras(wrapper, flow)


def _key_function(flow: Flow) -> Callable[..., str]:
    @functools.wraps(flow.function)
    def key(*args: Any, **kwargs: Any) -> str:
        return flow.key(args, kwargs)

    return key


def _with_extras(wrapper: Any, flow: Flow) -> Any:
    wrapper.flow = flow
    wrapper.start = start_function(flow)
    wrapper.start_many = start_many_function(flow)
    retry = f"{flow.name}.retry"
    wrapper.retry = lambda *args, **kwargs: driven(flow.drive, retry, call(flow.here(), args, kwargs, retry=True))
    wrapper.key = lambda *args, **kwargs: flow.key(args, kwargs)
    return wrapper


def step_of(function: Any, what: str) -> Step:
    """Return the step of a function under @app.step; `what` is what needs one, for the error."""
    step = getattr(function, "step", None)
    if not isinstance(step, Step):
        name = getattr(function, "__name__", type(function).__name__)
        raise Misuse(f"{what} needs a step, and {name} is none; put @app.step(repeat=…) above it.")
    return step
