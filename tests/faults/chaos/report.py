"""Runs the chaos, judges the effects afterwards, and prints the figures as a table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from tests.faults.chaos.storm import Plan, Say, Storm
from tests.faults.chaos.traces import Traces
from tests.faults.chaos.world import UNEXPLAINED, Verdict, judge
from tests.servers import PostgresServer

KINDS = ("safe", "keyed", "check", "transaction", "never")


class Report(Struct, frozen=True):
    plan: Plan
    verdict: Verdict
    seconds: float
    worker_kills: int
    database_kills: int
    replies_lost: int  # of the database
    answers_lost: int  # of the world outside
    effects: Counter[str]
    requests: Counter[str]

    @property
    def explained(self) -> int:
        return sum(self.verdict.causes.values()) - self.verdict.causes[UNEXPLAINED]

    def rows(self) -> Iterator[tuple[str, str]]:
        """The figures, each with its name."""
        plan, verdict = self.plan, self.verdict
        states = ", ".join(f"{count:,} {state}" for state, count in sorted(verdict.states.items()))
        yield "seed", str(plan.seed)
        yield "runs, five steps each", f"{plan.runs:,} in {self.seconds:.0f} s on {plan.workers} workers"
        yield "ended", states
        yield "workers killed", f"{self.worker_kills:,}"
        yield "database killed", f"{self.database_kills:,}"
        yield "answers lost", f"{self.replies_lost:,} of the database, {self.answers_lost:,} of the effects"
        yield "killed between effect and record", _by_kind(verdict.cut_off)
        yield "requests", _by_kind(self.requests)
        yield "effects", _by_kind(self.effects)
        yield "effects that happened twice", _by_kind(verdict.twice) or "0"
        yield "in review", f"{verdict.states['review']:,}, of these explained: {self.explained:,}"
        for cause, count in verdict.causes.most_common():
            yield f"  {cause}", f"{count:,}"
        yield "violations", f"{len(verdict.violations):,}"

    def table(self) -> str:
        rows = list(self.rows())
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {figure}" for name, figure in rows)


def _by_kind(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if kind in counts)


def weather(plan: Plan, directory: Path, server: PostgresServer, say: Say = lambda line: None) -> Report:
    """Run the chaos, and judge what is left."""
    began = time.monotonic()
    with Storm(plan, directory, server, say).raging() as storm:
        seconds = time.monotonic() - began
        traces = Traces.read(directory, storm.dsn)
        return Report(
            plan,
            judge(traces, plan.runs),
            seconds,
            len(traces.killed),
            len(traces.database_killed),
            storm.replies_lost,
            sum(traces.count(traces.lost).values()),
            traces.count(traces.done),
            traces.count(traces.begun),
        )
