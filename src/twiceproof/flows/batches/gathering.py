"""`app.gather`: steps and waits beside each other. Each goes on to its own end; only then does the run stop or fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...drive import Operation, Raised, await_
from ...errors import Misuse, StepFailed
from ..session import Session
from ..stop import merged
from .abreast import Abreast, Findings, is_fatal
from .branch import Branch

__all__ = ["MOST_AT_ONCE", "gather", "raise_what_counts"]

MOST_AT_ONCE = 32


def gather(session: Session, calls: Sequence[Any], limit: int | None) -> Operation[list[Any]]:
    """Results in the order of the calls."""
    work = _checked(session, calls)
    if limit is not None and limit < 1:
        raise Misuse(f"limit={limit} lets nothing run; give 1 or more.")
    session.refuse_if_stopped()
    branches = session.fork(len(work))
    try:
        findings = yield Abreast(branches, lambda number: work[number](), limit or MOST_AT_ONCE)
    finally:
        session.join()
        _close(calls)
    raise_what_counts(session, branches, findings)
    return [finding.value for finding in findings]


def raise_what_counts(session: Session, branches: list[Branch], findings: Findings) -> None:
    """What ends the run first, then what stops it, then what failed: a failure is on record, and is met again."""
    errors = [finding.error for finding in findings if isinstance(finding, Raised)]
    fatal = next((error for error in errors if is_fatal(Raised(error))), None)
    if fatal is not None:
        raise fatal
    stops = [branch.stop for branch in branches if branch.stop is not None]
    if stops:
        session.halt(merged(stops))
    if errors:
        raise next((error for error in errors if isinstance(error, StepFailed)), errors[0])


def _checked(session: Session, calls: Sequence[Any]) -> list[Callable[[], Any]]:
    """Functions; in an `async def` flow also coroutines that have not begun."""
    awaits = session.drive is await_
    wrong = next((call for call in calls if not (callable(call) or (awaits and inspect.iscoroutine(call)))), None)
    if wrong is not None:
        _close(calls)
        raise Misuse(_advice(wrong, awaits=awaits))
    return [call if callable(call) else lambda call=call: call for call in calls]  # type: ignore[misc]


def _advice(wrong: object, *, awaits: bool) -> str:
    kind = type(wrong).__name__
    if awaits:
        return f"app.gather was given a {kind}; pass steps that have not begun: await app.gather(step(a), step(b))."
    return f"app.gather was given a {kind}: the step has already run; pass functions: app.gather(lambda: step(a), …)."


def _close(calls: Sequence[Any]) -> None:
    """Coroutines that were never begun, or Python complains later, elsewhere."""
    for call in calls:
        if inspect.iscoroutine(call):
            call.close()
