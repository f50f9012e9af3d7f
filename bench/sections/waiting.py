"""Waiting runs: what a hundred thousand of them cost whoever picks up the next one that is due."""

from __future__ import annotations

from contextlib import ExitStack

from twiceproof import App

from ..contenders.picking import Picking, make_waiting_flow, megabytes_of_worker
from ..findings import Findings, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import ratio, spread
from ..sites import Site
from ..waiting import fill_waiting

__all__ = ["measure_waiting"]


def measure_waiting(site: Site, plan: Plan, progress: Progress) -> Findings:
    count, slots = plan.waiting, Slots(plan.rounds, plan.slot)
    urls = [site.fresh(), site.fresh()]
    with ExitStack() as stack, progress.heat(f"{site.name}, {count:,} waiting runs", slots.rounds) as step:
        fill_waiting(site, urls[1], count)
        names = ["next due run, none waiting", f"next due run, {count:,} waiting"]
        contenders = [_picking(name, url, stack) for name, url in zip(names, urls, strict=True)]
        empty, full = compete(contenders, slots, step)
    memory = [megabytes_of_worker(url) for url in urls]
    return Findings(
        rows_beside(f"{site.name}, waiting runs", empty, [empty, full]),
        [
            line("waiting cost", site.name, ratio(empty, full)),
            line("waiting memory", site.name, spread([max(0.0, memory[1] - memory[0])])),
        ],
    )


def _picking(name: str, url: str, stack: ExitStack) -> Contender:
    app = App(url)
    stack.callback(app.close)
    return Contender(name, Picking(app, make_waiting_flow(app)))
