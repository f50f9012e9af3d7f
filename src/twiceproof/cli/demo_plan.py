"""What the demo will do, drawn from a seed: which order comes how often, and where workers are killed."""

from __future__ import annotations

import random

from msgspec import Struct

__all__ = ["PLACES", "Plan", "make_plan"]

PLACES = ("after_effect", "before_effect", "after_record")  # the first is the one that matters most
MOST_DELIVERIES = 8
SPREAD = 6.0  # how far apart, in orders, the deliveries of one order lie: near enough to overlap


class Plan(Struct, frozen=True):
    """`deliveries`: the orders as they come in. `kills`: the order whose worker dies, and where."""

    deliveries: list[int]
    kills: dict[int, str]


def make_plan(orders: int, seed: int) -> Plan:
    dice = random.Random(seed)  # noqa: S311 - a demo's dice, to be thrown again
    times = [
        (order + dice.random() * SPREAD, order)
        for order in range(1, orders + 1)
        for _ in range(dice.randint(1, MOST_DELIVERIES))
    ]
    return Plan([order for _, order in sorted(times)], _kills(orders, dice))


def _kills(orders: int, dice: random.Random) -> dict[int, str]:
    """One kill for twenty orders, nine at most, each place in turn. Early, for their leases have to lapse."""
    count = min(9, max(3, orders // 20), orders)
    early = range(1, max(count, orders * 2 // 3) + 1)
    chosen = sorted(dice.sample(early, count))
    return {order: PLACES[nth % len(PLACES)] for nth, order in enumerate(chosen)}
