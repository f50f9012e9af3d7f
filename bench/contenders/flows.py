"""Twiceproof's flows: so many trivial steps, each `safe`."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

from twiceproof import App

from ..callers import TASKS, Act, Callers, One, Tasks, Threads, count_in
from ..rounds import Contender

__all__ = ["Ids", "OurFlows", "blocking", "fresh_ids"]

Ids = Callable[[], str]


def fresh_ids() -> Ids:
    """Ids that no other contender draws. Safe to call from threads."""
    prefix, numbers = uuid.uuid4().hex[:8], itertools.count()
    return lambda: f"{prefix}-{next(numbers)}"


class OurFlows:
    name = "@app.flow"

    def __init__(self, app: App) -> None:
        self._blocking = _blocking_flow(app)
        self._awaited = _awaited_flow(app)

    def running(self, steps: int, callers: str) -> Contender:
        return Contender(f"{self.name}, {steps} steps", self._callers(steps, callers))

    def _callers(self, steps: int, callers: str) -> Callers:
        ids = fresh_ids()
        if callers == TASKS:
            return Tasks(count_in(callers), lambda _: self._awaited(ids(), steps))
        return blocking(callers, lambda _: self._blocking(ids(), steps))

    def replaying(self, steps: int, finished: int) -> Contender:
        """The whole flow again, under the id of one that finished."""
        ids = fresh_ids()
        runs = [ids() for _ in range(finished)]
        Threads(10, lambda caller: [self._blocking(run, steps) for run in runs[caller::10]]).time(1)
        turns = itertools.cycle(runs)
        return Contender(f"{self.name}, finished before", One(lambda _: self._blocking(next(turns), steps)))


def blocking(callers: str, act: Act) -> Callers:
    return Threads(count_in(callers), act) if callers.endswith("threads") else One(act)


def _blocking_flow(app: App) -> Callable[[str, int], int]:
    @app.step(repeat="safe")
    def add(number: int) -> int:
        return number + 1

    @app.flow(key="{run}")
    def count(run: str, steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = add(number)
        return number

    return count


def _awaited_flow(app: App) -> Callable[[str, int], Any]:
    @app.step(repeat="safe")
    async def add(number: int) -> int:
        return number + 1

    @app.flow(key="{run}")
    async def count_awaited(run: str, steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = await add(number)
        return number

    return count_awaited
