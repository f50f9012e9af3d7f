"""Calls beside each other: on threads for a blocking caller, as tasks for an awaiting one. All are waited for."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from ...drive import Call, Raised, Request, Returned
from ...errors import ClaimLost, StoreError, WaitSwallowed
from ..context import is_interrupt
from .branch import Branch, branch_var

__all__ = ["Abreast", "Findings", "is_fatal"]

Findings = list[Returned | Raised | None]  # None: not begun, because another one was fatal


def is_fatal(finding: Returned | Raised | None) -> bool:
    """Whether the whole run is over: the claim or the store is lost, or the process is told to stop."""
    if not isinstance(finding, Raised):
        return False
    return isinstance(finding.error, ClaimLost | StoreError | WaitSwallowed) or is_interrupt(finding.error)


class Abreast(Request[Findings]):
    """`call(n)` for each branch, at most `limit` at once. After a fatal one nothing new is begun."""

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
        """The next call's number; -1 when there is none."""

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
        except BaseException:  # interrupted: what is under way is waited for, nothing new is begun
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
        return Call(lambda: self._call(number)).block()

    # -- as tasks --------------------------------------------------------------------------------

    async def wait(self) -> Findings:
        import asyncio

        tasks = [asyncio.create_task(self._work_awaiting()) for _ in range(self._limit)]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except BaseException:  # cancelled: so is what is under way, and it is waited for
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
                self._found(number, await Call(lambda: self._awaited(number)).wait())
            finally:
                branch_var.reset(token)

    async def _awaited(self, number: int) -> Any:
        answer = self._call(number)
        return await answer if inspect.isawaitable(answer) else answer


def _begin(threads: list[threading.Thread], begun: list[threading.Thread]) -> None:
    """As many as can be had: those that run do the work of all."""
    with contextlib.suppress(RuntimeError):  # no more threads; the others would go on while the run ends without them
        for thread in threads:
            thread.start()
            begun.append(thread)


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
