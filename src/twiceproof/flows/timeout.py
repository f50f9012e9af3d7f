"""A step's time-out: awaited work is cancelled; a thread cannot be, so it is no longer waited for."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from ..drive import Raised, Returned

__all__ = ["limited"]


def limited(
    function: Callable[..., Any], seconds: float, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any]:  # fmt: skip
    if inspect.iscoroutinefunction(function):
        return lambda: _awaited(function(*args, **kwargs), seconds)
    return lambda: _watched(lambda: function(*args, **kwargs), seconds)


async def _awaited(work: Any, seconds: float) -> Any:
    import asyncio

    async with asyncio.timeout(seconds):
        return await work


def _watched(work: Callable[[], Any], seconds: float) -> Any:
    """On a thread of its own. What it does after its time is over is nobody's: the outcome is unknown."""
    box: list[Returned | Raised] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: box.append(_caught(context, work)), name="twiceproof-step", daemon=True)
    thread.start()
    thread.join(seconds)
    if not box:
        raise TimeoutError(f"no answer within {seconds:g} s; the call may still be going on")
    if isinstance(box[0], Raised):
        raise box[0].error
    return box[0].value


def _caught(context: contextvars.Context, work: Callable[[], Any]) -> Returned | Raised:
    try:
        return Returned(context.run(work))
    except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
        return Raised(error)
