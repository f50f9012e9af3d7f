"""Guarded functions and flows called inside a flow: each becomes a step of that flow and keeps its own guard."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ...operations import Operation, await_, block
from ..repeat import SAFE, Retry
from ..step import Step
from .context import as_coroutine_function, current_session, noted, plain_session
from .decisions import StepPlan

__all__ = ["ASK_AGAIN", "guarded_wrapper"]

# The inner claim or run guards its own work, so calling it again repeats nothing: the outer run may call it repeatedly.
ASK_AGAIN = StepPlan(SAFE, Retry(attempts=1_000, first="1s", most="1m", within="30d"))


def guarded_wrapper(
    function: Callable[..., Any], name: str, key: Callable[..., str], call: Callable[..., Operation[Any]]
) -> Callable[..., Any]:
    """Wrap a guarded `function`: outside of flows it runs through `call`, in a flow as a step of that flow."""
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
