"""Asks a step's destination whether it happened."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..claims.verdict import fault_of
from ..drive import Call, Operation, Returned
from ..effects.look import Look, Unknown, look_of
from .calling import Calling
from .context import Attempt, attempt_var
from .names import effect_key
from .step import Step, called_with

if TYPE_CHECKING:
    from .session import Session

__all__ = ["probe"]


def probe(session: Session, calling: Calling) -> Operation[Look]:
    """A probe that fails tells nothing."""
    look = calling.step.plan.repeat.probe
    if look is None:
        return Unknown("the step has no probe")
    key = effect_key(session.space, calling.name)
    given = called_with(look, {**calling.arguments, "effect_key": key})
    token = attempt_var.set(Attempt(session.space, calling.name, 0))
    try:
        finding = yield from Call(_called(look, given, calling.step))
    finally:
        attempt_var.reset(token)
    if isinstance(finding, Returned):
        return look_of(finding.value)
    if not isinstance(finding.error, Exception):
        raise finding.error
    return Unknown(f"the probe failed with {fault_of(finding.error).type}: {fault_of(finding.error).message}")


def _called(look: Callable[..., Any], given: dict[str, Any], step: Step) -> Callable[[], Any]:
    """Called the way its step is: an `async def` step may have a plain probe."""
    if not step.is_async:
        return lambda: look(**given)

    async def awaited() -> Any:
        answer = look(**given)
        return await answer if inspect.isawaitable(answer) else answer

    return awaited
