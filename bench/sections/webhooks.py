"""Webhooks per second beside a handler that does nothing, and good traffic beside slow senders."""

from __future__ import annotations

from contextlib import ExitStack

from ..contenders.door_server import DoorServer
from ..contenders.drip import Drip
from ..findings import Findings, rows_beside
from ..goals import line
from ..http_load import HttpCallers
from ..plan import Plan
from ..progress import Progress
from ..rounds import Slots, compete
from ..series import ratio, spread
from ..sites import Site

__all__ = ["measure_slow_senders", "measure_webhooks"]


def measure_webhooks(site: Site, plan: Plan, progress: Progress) -> Findings:
    """All three on one server process: they differ in nothing but what is done."""
    slots = Slots(plan.rounds, plan.slot * 4)
    part = f"{site.name}, webhooks"
    with DoorServer(site.fresh()) as server, progress.heat(part, slots.rounds) as step:
        nothing, duplicates, new = compete(
            [server.nothing(), server.duplicates(plan.replayed), server.new()], slots, step
        )
    return Findings(
        rows_beside(part, nothing, [nothing, duplicates, new]),
        [
            line("webhook duplicates", site.name, ratio(duplicates, nothing)),
            line("webhook new", site.name, ratio(new, nothing)),
        ],
    )


def measure_slow_senders(site: Site, plan: Plan, progress: Progress) -> Findings:
    """Each round: the same good traffic without and with so many connections that drip bytes."""
    part, count = f"{site.name}, webhooks", plan.slow_senders
    ratios: list[float] = []
    with ExitStack() as stack, progress.heat(f"{part}, {count} slow senders", plan.rounds) as step:
        server = stack.enter_context(DoorServer(site.fresh()))
        callers = server.duplicates(plan.replayed).callers
        stack.callback(callers.close)
        assert isinstance(callers, HttpCallers)
        each = max(1, round(plan.slot * 200))
        for _ in range(plan.rounds):
            quiet = _p99(callers, each)
            with Drip(server.address, count):
                ratios.append(_p99(callers, each) / quiet)
            step()
    return Findings(lines=[line("slow senders", site.name, spread(ratios))])


def _p99(callers: HttpCallers, each: int) -> float:
    callers.time(each)
    ordered = sorted(callers.latencies)
    return ordered[int(len(ordered) * 0.99)]
