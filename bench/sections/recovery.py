"""Recovery: many runs that a killed process left in their second step, finished by one fresh process."""

from __future__ import annotations

import time

from ..contenders.interrupted_ours import LEASE
from ..findings import Findings, rows_beside
from ..goals import line
from ..interrupted import interrupt, recover
from ..plan import Plan
from ..progress import Progress
from ..series import Series, spread
from ..sites import Site

__all__ = ["measure_recovery"]


def measure_recovery(site: Site, plan: Plan, progress: Progress) -> Findings:
    """Once, not in rounds: a thousand runs are a round of their own."""
    count = plan.interrupted
    mine, peer = site.fresh(), site.fresh()
    with progress.heat(f"{site.name}, {count:,} interrupted runs", 1) as step:
        interrupt("ours", mine, count)
        killed = time.monotonic()
        interrupt("dbos", peer, count)
        time.sleep(max(0.0, killed + LEASE + 1.0 - time.monotonic()))  # until the last lease has lapsed
        ours, dbos = recover("ours", mine, count), recover("dbos", peer, count)
        step()
    series = [_series("DBOS", dbos / count), _series("app.worker", ours / count)]
    return Findings(
        rows_beside(f"{site.name}, {count:,} interrupted runs of 3 steps", series[0], series),
        [line("flow recovery", site.name, spread([ours / dbos]))],
    )


def _series(name: str, seconds: float) -> Series:
    return Series(name, "1 process", (seconds,))
