"""Picks up runs that have fallen due, one after the other, as a worker does.

`python -m bench.contenders.picking <url>` prints the kilobytes of a process that has picked up some.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from twiceproof import App
from twiceproof.flows.engine.exits import Finished
from twiceproof.flows.flow import Flow
from twiceproof.flows.workers.due_work import resume_run
from twiceproof.operations import block

from ..callers import ONE
from .flows import fresh_ids

__all__ = ["FLOW", "Picking", "make_waiting_flow", "megabytes_of_worker"]

FLOW = "remind"
ROOT = Path(__file__).parents[2]
PICKED = 200


def make_waiting_flow(app: App) -> Any:
    """Sleeps for days if it is told to. Those that wait and those that are due are in one queue."""

    @app.flow(key="{run}", name=FLOW)
    def remind(run: str, days: int = 0) -> str:
        if days:
            app.sleep(days * 86400.0)
        return run

    return remind


class Picking:
    """One act: ask for what is due, and run it. What is due was started before the clock."""

    label = ONE
    count = 1

    def __init__(self, app: App, remind: Any) -> None:
        self._app = app
        self._remind = remind
        self._ids = fresh_ids()

    def time(self, each: int) -> float:
        for _ in range(each):
            self._remind.start(self._ids())
        began = time.perf_counter()
        for _ in range(each):
            self._pick_up(self._remind.flow)
        return time.perf_counter() - began

    def _pick_up(self, flow: Flow) -> None:
        due = block(iter(self._app.store.due("run", queues=flow.queues, limit=1)))
        ended = block(resume_run(flow, due.records[0]))
        assert isinstance(ended, Finished), ended

    def close(self) -> None:
        """The app belongs to whoever opened it."""


def megabytes_of_worker(url: str) -> float:
    """A fresh process each time: what another contender left in memory would count, too."""
    command = [sys.executable, "-m", "bench.contenders.picking", url]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout) / 1024


def _kilobytes() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("VmRSS:"))


def main(url: str) -> None:
    with App(url) as app:
        Picking(app, make_waiting_flow(app)).time(PICKED)
        print(_kilobytes())


if __name__ == "__main__":
    main(sys.argv[1])
