"""Scale: what a claim costs in a store that holds much, beside one that holds little."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from twiceproof import App

from ..callers import TASKS
from ..contenders import ours
from ..fill import OPERATION
from ..findings import Findings, rows_beside
from ..goals import line
from ..orders import Asks, Keys, growing, random_keys
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import ratio
from ..sites import Site

__all__ = ["measure_scale"]

KINDS: dict[str, Callable[[int], Keys]] = {"growing": growing, "random": lambda start: random_keys()}


def measure_scale(site: Site, plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    for kind in KINDS:
        findings.add(_heat(site, kind, plan, progress))
    return findings


def _heat(site: Site, kind: str, plan: Plan, progress: Progress) -> Findings:
    part = f"{site.name}, scale, {kind} keys"
    slots = Slots(plan.scale_rounds, plan.scale_slot)
    with ExitStack() as stack, progress.heat(part, slots.rounds) as step:
        contenders = [_filled(site, kind, count, stack) for count in (plan.few, site.many(plan))]
        small, large = compete(contenders, slots, step)
    return Findings(
        rows_beside(part, small, [small, large]),
        [line(f"scale {kind}", site.name, ratio(small, large), f"{kind} keys:")],
    )


def _filled(site: Site, kind: str, count: int, stack: ExitStack) -> Contender:
    """A store with so many finished claims in it, and callers whose keys fall among or after them."""
    url = site.fresh()
    App(url, best_effort=True).close()  # makes the schema
    site.fill(url, KINDS[kind](0), count)
    app = App(url, best_effort=True)
    stack.callback(app.close)
    asks = Asks(OPERATION, KINDS[kind](count))
    return ours.completing_each(app, TASKS, asks, f"take + complete, {count:,} claims there")
