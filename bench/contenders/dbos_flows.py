"""DBOS as its documentation has it: its decorators, default settings, a workflow id per run."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack

from dbos import DBOS, DBOSConfig, SetWorkflowID

from ..callers import ONE, TASKS, Callers, One, Tasks, Threads, count_in
from ..rounds import Contender
from .flows import blocking, fresh_ids

__all__ = ["DbosFlows", "launch_dbos"]


def launch_dbos(url: str) -> None:
    """One per process. A fixed version: recovery finds only what belongs to its own."""
    config = DBOSConfig(name="bench", system_database_url=url, application_version="1", log_level="ERROR")
    DBOS(config=config)
    DBOS.launch()


class DbosFlows:
    name = "DBOS"

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._runner = asyncio.Runner()
        stack.callback(self._runner.close)
        launch_dbos(url)
        stack.callback(DBOS.destroy)

    def running(self, steps: int, callers: str) -> Contender:
        # With many callers one turn of each takes seconds: there is no need to find out how many fill a slot.
        each = 1 if callers != ONE and steps else None
        return Contender(f"{self.name}, {steps} steps", self._callers(steps, callers), each=each)

    def _callers(self, steps: int, callers: str) -> Callers:
        ids = fresh_ids()

        async def awaited(_: int) -> int:
            with SetWorkflowID(ids()):
                return await count_awaited(steps)

        if callers == TASKS:
            return _Tasks(count_in(callers), awaited, self._runner)
        return blocking(callers, lambda _: _run(ids(), steps))

    def replaying(self, steps: int, finished: int) -> Contender:
        ids = fresh_ids()
        runs = [ids() for _ in range(finished)]
        Threads(10, lambda caller: [_run(run, steps) for run in runs[caller::10]]).time(1)
        turns = itertools.cycle(runs)
        return Contender(f"{self.name}, finished before", One(lambda _: _run(next(turns), steps)))


class _Tasks(Tasks):
    def close(self) -> None:
        """DBOS lends its threads to the event loop: they end together, and with DBOS."""


def _run(run: str, steps: int) -> int:
    with SetWorkflowID(run):
        return count(steps)


@DBOS.step()
def add(number: int) -> int:
    return number + 1


@DBOS.workflow()
def count(steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = add(number)
    return number


@DBOS.step()
async def add_awaited(number: int) -> int:
    return number + 1


@DBOS.workflow()
async def count_awaited(steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await add_awaited(number)
    return number
