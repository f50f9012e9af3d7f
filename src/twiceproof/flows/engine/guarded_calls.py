"""Guarded functions, methods and flows as their callers see them: in a flow, each is a step and keeps its guard."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ...claims.once import Once
from ...effects.repeat import SAFE, Retry
from ...operations import Operation, await_, block
from ..step import Step
from .context import as_coroutine_function, current_session, driven, noted, plain_session, session_var
from .decisions import StepPlan

if TYPE_CHECKING:
    from ..runtime import Runtime

__all__ = ["ASK_AGAIN", "GuardedMethod", "guard_function", "guarded_wrapper"]

# The inner claim or run guards its own work, so calling it again repeats nothing: the outer run may call it repeatedly.
ASK_AGAIN = StepPlan(SAFE, Retry(attempts=1_000, first="1s", most="1m", within="30d"))


def guard_function(function: Callable[..., Any], once: Once, runtime: Runtime) -> Any:
    """Return `function` under its claim, with the same signature, `.key`, `.look` and `.retry`, and `.once` itself."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False) -> Operation[Any]:
        return once.call(args, kwargs, tenant=runtime.tenant, retry=retry)

    @functools.wraps(function)
    def key(*args: Any, **kwargs: Any) -> str:
        return once.key(args, kwargs)

    wrapper: Any = guarded_wrapper(function, once.policy.operation, key, call, outside=once.call)
    drive: Callable[..., Any] = await_ if inspect.iscoroutinefunction(function) else block
    retry = f"{once.policy.operation}.retry"
    wrapper.once = once
    wrapper.key = lambda *args, **kwargs: once.key(args, kwargs)
    wrapper.look = lambda *args, **kwargs: drive(once.look(args, kwargs, tenant=runtime.tenant))
    wrapper.retry = lambda *args, **kwargs: driven(drive, retry, call(args, kwargs, retry=True))
    return GuardedMethod(wrapper, ("key", "look", "retry")) if _is_method(function, once) else wrapper


def _is_method(function: Callable[..., Any], once: Once) -> bool:
    """Whether it was written in the body of a class: only there, `self` is any object of that class."""
    scope = getattr(function, "__qualname__", "").rpartition(".")[0]
    return once.claim_requests.arguments.receiver is not None and bool(scope) and not scope.endswith("<locals>")


def guarded_wrapper(
    function: Callable[..., Any],
    name: str,
    key: Callable[..., str],
    call: Callable[..., Operation[Any]],
    *,
    outside: Callable[..., Operation[Any]] | None = None,
) -> Callable[..., Any]:
    """Return `function` as its callers see it: in a flow it is a step of that flow, elsewhere it runs `call`.

    `outside` does the same as `call` outside of any run, at less cost.
    """
    direct = outside or call
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def alone(*args: Any, **kwargs: Any) -> Any:
            return await await_(call(args, kwargs))

        step = Step(alone, ASK_AGAIN, name=name, own_id=key, guards_itself=True)

        async def work(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            session = current_session()  # when it is awaited: that may be elsewhere than where it was called
            return await await_(call(args, kwargs) if session is None else session.step(step, args, kwargs))

        @as_coroutine_function
        @functools.wraps(function)
        def awaiting(*args: Any, **kwargs: Any) -> Any:
            return noted(name, lambda: work(args, kwargs), names=(name,))

        return awaiting

    @functools.wraps(function)
    def plainly(*args: Any, **kwargs: Any) -> Any:
        return block(call(args, kwargs))

    inner = Step(plainly, ASK_AGAIN, name=name, own_id=key, guards_itself=True)

    @functools.wraps(function)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        if session_var.get() is None:  # outside of any run, as most calls are
            return block(direct(args, kwargs))
        session = plain_session(name)
        return block(call(args, kwargs) if session is None else session.step(inner, args, kwargs))

    return blocking


class GuardedMethod:
    """A guarded method in its class. Through an object it is a bound method, with `.key` and the like bound too."""

    def __init__(self, function: FunctionType, extras: tuple[str, ...]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._extras = extras
        if inspect.iscoroutinefunction(function) and hasattr(inspect, "markcoroutinefunction"):
            inspect.markcoroutinefunction(self)  # for decorators above this one (Python 3.12)

    def __get__(self, receiver: Any, owner: type | None = None) -> Any:
        if receiver is None:
            return self._function
        bound = _copied(self._function)
        for name in self._extras:
            setattr(bound, name, functools.partial(getattr(self._function, name), receiver))
        return MethodType(bound, receiver)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def _copied(function: FunctionType) -> FunctionType:
    """Return a copy of a function: attributes of a method are those of its function, and each object needs its own."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function, updated=("__dict__",))  # type: ignore[return-value]
