"""`app.gather`: run branches on threads or tasks."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ClaimLost, Misuse, StepFailed, StoreError, WaitSwallowed
from ...operations import Operation, Raised, Request, Returned, UserCall, await_
from ..engine.context import Branch, branch_var, is_interrupt
from ..engine.exits import merged
from ..engine.session import Session

__all__ = ["MOST_AT_ONCE", "Findings", "ParallelBranches", "gather", "is_fatal", "raise_first_error"]


Findings = list[Returned | Raised | None]  # None: not started, because another one was fatal


def is_fatal(finding: Returned | Raised | None) -> bool:
    """Whether the whole run is over: the claim or the store is lost, or the process was told to stop."""
    if not isinstance(finding, Raised):
        return False
    return isinstance(finding.error, ClaimLost | StoreError | WaitSwallowed) or is_interrupt(finding.error)


class ParallelBranches(Request[Findings]):
    """Runs `call(n)` for each branch, at most `limit` at once. After a fatal error nothing new is started."""

    __slots__ = ("_branches", "_call", "_findings", "_limit", "_mutex", "_next", "_stopped")

    def __init__(self, branches: list[Branch], call: Callable[[int], Any], limit: int) -> None:
        self._branches = branches
        self._call = call
        self._limit = min(limit, len(branches))
        self._findings: Findings = [None] * len(branches)
        self._next = 0
        self._stopped = False
        self._mutex = threading.Lock()

    def _turns(self) -> Callable[[], int]:
        """The next branch's number; -1 when there is none."""

        def take() -> int:
            with self._mutex:
                if self._stopped or self._next == len(self._branches):
                    return -1
                self._next += 1
                return self._next - 1

        return take

    def _found(self, number: int, finding: Returned | Raised) -> None:
        self._findings[number] = finding
        if is_fatal(finding):
            self._stopped = True

    # -- on threads ------------------------------------------------------------------------------

    def block(self) -> Findings:
        context = contextvars.copy_context()
        if self._limit <= 1:
            self._work(context)
            return self._findings
        threads = [
            threading.Thread(target=self._work, args=(context,), name="twiceproof-branch", daemon=True)
            for _ in range(self._limit)
        ]
        begun: list[threading.Thread] = []
        try:
            _begin(threads, begun)
            if not begun:
                self._work(context)
            _join(begun)
        except BaseException:  # interrupted: wait for what is running, start nothing new
            self._stopped = True
            _join(begun)
            raise
        return self._findings

    def _work(self, context: contextvars.Context) -> None:
        take = self._turns()
        while (number := take()) >= 0:
            self._found(number, context.copy().run(self._carry_out, number))

    def _carry_out(self, number: int) -> Returned | Raised:
        branch_var.set(self._branches[number])
        return UserCall(lambda: self._call(number)).block()

    # -- as tasks --------------------------------------------------------------------------------

    async def wait(self) -> Findings:
        import asyncio

        tasks = [asyncio.create_task(self._work_awaiting()) for _ in range(self._limit)]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except BaseException:  # cancelled: cancel what is running, and wait for it
            self._stopped = True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        return self._findings

    async def _work_awaiting(self) -> None:
        take = self._turns()
        while (number := take()) >= 0:
            token = branch_var.set(self._branches[number])
            try:
                self._found(number, await UserCall(lambda: self._awaited(number)).wait())
            finally:
                branch_var.reset(token)

    async def _awaited(self, number: int) -> Any:
        answer = self._call(number)
        return await answer if inspect.isawaitable(answer) else answer


def _begin(threads: list[threading.Thread], begun: list[threading.Thread]) -> None:
    """Start as many threads as possible: those that run do the work of all."""
    with contextlib.suppress(RuntimeError):  # no more threads: the started ones must not outlive the run
        for thread in threads:
            thread.start()
            begun.append(thread)


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


MOST_AT_ONCE = 32


def gather(session: Session, calls: Sequence[Any], limit: int | None) -> Operation[list[Any]]:
    """Results in the order of the calls."""
    work = _checked(session, calls)
    if limit is not None and limit < 1:
        raise Misuse(f"limit={limit} lets nothing run; give 1 or more.")
    session.refuse_if_stopped()
    branches = session.fork(len(work))
    try:
        findings = yield ParallelBranches(branches, lambda number: work[number](), limit or MOST_AT_ONCE)
    finally:
        session.join()
        _close(calls)
    raise_first_error(session, branches, findings)
    return [finding.value for finding in findings]


def raise_first_error(session: Session, branches: list[Branch], findings: Findings) -> None:
    """Raise what ends the run first, then what stops it, then a failure: those are recorded, and come up again."""
    errors = [finding.error for finding in findings if isinstance(finding, Raised)]
    fatal = next((error for error in errors if is_fatal(Raised(error))), None)
    if fatal is not None:
        raise fatal
    stops = [branch.stop for branch in branches if branch.stop is not None]
    if stops:
        session.stop_run(merged(stops))
    if errors:
        raise next((error for error in errors if isinstance(error, StepFailed)), errors[0])


def _checked(session: Session, calls: Sequence[Any]) -> list[Callable[[], Any]]:
    """Functions; in an `async def` flow also coroutines that have not started."""
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
    """Close coroutines that were never started, or Python warns later, elsewhere."""
    for call in calls:
        if inspect.iscoroutine(call):
            call.close()
