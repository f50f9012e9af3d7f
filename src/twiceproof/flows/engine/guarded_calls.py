"""Guarded functions and flows that are called inside a flow: each is a step of that flow, and guards itself too."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from ...operations import Operation, await_, block
from ..repeat import SAFE, Retry
from ..step import Step
from .context import attempt_var, current_session, plain_session, session_var
from .decisions import StepPlan
from .unawaited import as_coroutine_function, noted

__all__ = ["ASK_AGAIN", "guarded_wrapper", "parent_of_new_run", "patience_around"]

# What the inner claim or run protects is never repeated by asking again: the outer one may ask as often as it likes.
ASK_AGAIN = StepPlan(SAFE, Retry(attempts=1_000, first="1s", most="1m", within="30d"))


def guarded_wrapper(
    function: Callable[..., Any], name: str, key: Callable[..., str], call: Callable[..., Operation[Any]]
) -> Callable[..., Any]:
    """`function` as it is called by everybody: through `call`, and in a flow as a step of that flow."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def alone(*args: Any, **kwargs: Any) -> Any:
            return await await_(call(args, kwargs))

        step = Step(alone, ASK_AGAIN, name=name, own_id=key, guards_itself=True)

        async def work(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            session = current_session()
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
        session = plain_session(name)
        return block(call(args, kwargs) if session is None else session.step(inner, args, kwargs))

    return blocking


def parent_of_new_run() -> str:
    """The run in whose step a run is begun, or nothing."""
    session = session_var.get()
    return session.claim.run if session is not None and session.open else ""


def patience_around() -> float:
    """For how long the run around a call may be held up. A step that cannot be left and asked again waits for ever."""
    session, attempt = session_var.get(), attempt_var.get()
    if session is None or attempt is None or not session.open:
        return math.inf
    around = session.calls.get(attempt.step)
    return session.patience if around is not None and around.step.plan.repeat is SAFE else math.inf
