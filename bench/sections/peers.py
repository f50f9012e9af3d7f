"""A peer: AWS Powertools' idempotency decorator and `@app.once`, on the same Valkey."""

from __future__ import annotations

from contextlib import ExitStack

from twiceproof import App

from ..callers import ONE
from ..contenders import ours
from ..findings import Findings, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Slots, compete
from ..series import ratio
from ..sites import Site

__all__ = ["measure_peers"]


def measure_peers(site: Site, setting: str, plan: Plan, progress: Progress) -> Findings:
    """`setting` is the server's appendfsync: with "always" both wait for the disk, with "everysec" neither does."""
    findings = Findings()
    for callers in (ONE, "8 threads"):
        findings.add(_heat(site, setting, callers, plan, progress))
    return findings


def _heat(site: Site, setting: str, callers: str, plan: Plan, progress: Progress) -> Findings:
    from ..contenders.powertools import powertools

    part, slots = f"Valkey, appendfsync {setting}, {callers}", Slots(plan.rounds, plan.slot)
    with ExitStack() as stack, progress.heat(f"{part}, beside Powertools", slots.rounds) as step:
        app = App(site.fresh(), best_effort=True)
        stack.callback(app.close)
        peer, mine = compete([powertools(site.fresh(), callers, stack), ours.once(app, callers)], slots, step)
    return Findings(
        rows_beside(part, peer, [peer, mine]),
        [line(f"peer, {callers}, {setting}", f"Valkey, {setting}", ratio(mine, peer), f"{callers}:")],
    )
