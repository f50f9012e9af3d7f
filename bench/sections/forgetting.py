"""Forgetting: runs whose time is over, removed with their steps by one sweeper, beside 64 callers who make them."""

from __future__ import annotations

import asyncio
import itertools
import time

from twiceproof import App
from twiceproof.claims.retention import sweep
from twiceproof.operations import block

from ..findings import Findings, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..series import Series, ratio
from ..sites import Site

__all__ = ["measure_forgetting"]

CALLERS = 64
KEEP = 0.001  # seconds: over when the last one is made


def measure_forgetting(site: Site, plan: Plan, progress: Progress) -> Findings:
    """Both in each round, one after the other: the figures are of the same runs."""
    count, part = plan.forgotten, f"{site.name}, {plan.forgotten:,} runs of 2 steps"
    with App(site.fresh(), best_effort=True) as app, progress.heat(f"{part}, forgotten", plan.flow_rounds) as step:
        makes, forgets = [], []
        for _ in range(plan.flow_rounds):
            makes.append(_timed(lambda: _make(app, count)) / count)
            time.sleep(10 * KEEP)
            forgets.append(_timed(lambda: _forget(app, count)) / count)
            step()
    made = Series("runs made", f"{CALLERS} tasks", tuple(makes))
    forgotten = Series("runs forgotten", "1 sweeper", tuple(forgets))
    return Findings(rows_beside(part, made, [made, forgotten]), [line("forgetting", site.name, ratio(forgotten, made))])


def _timed(work: object) -> float:
    began = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - began


def _make(app: App, count: int) -> None:
    @app.step(repeat="safe")
    async def first(number: int) -> int:
        return number

    @app.step(repeat="safe")
    async def second(number: int) -> int:
        return number

    @app.flow(key="order:{number}", keep=KEEP, name=f"bench-{time.monotonic_ns()}")
    async def order(number: int) -> int:
        await first(number)
        return await second(number)

    async def call(numbers: itertools.count[int]) -> None:
        while (number := next(numbers)) < count:
            await order(number)

    async def everybody() -> None:
        numbers = itertools.count()
        await asyncio.gather(*[call(numbers) for _ in range(CALLERS)])

    asyncio.run(everybody())


def _forget(app: App, count: int) -> None:
    forgotten = 0
    while forgotten < count:
        forgotten += block(sweep(app.store)).forgotten
