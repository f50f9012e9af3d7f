"""The plan of the demo, drawn from a seed: the orders, when their messages are sent, and the faults."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

__all__ = ["FEWEST", "LIMIT", "PLAN", "SIDES", "Delivery", "DemoPlan", "Order", "make_plan", "read_plan"]


SIDES = ("naive", "twiceproof")
PLAN = "plan.json"
FEWEST = 10  # orders: with fewer there is no room for one of each kind of fault
LIMIT = 5_000  # EUR: an order above it has to be approved
PACE = 0.05  # seconds from one order to the next
LATEST = 2.0  # seconds after the first copy of a message
COPIES = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4)  # how often one message is delivered
CHANGED = 0.5  # seconds from one change of an address to the next
AT_ONCE = 0.3  # share of the further copies that are sent at the same moment as the first


class Order(Struct, frozen=True):
    """One order. `addresses` is how often the customer changes the address; the last one counts."""

    id: int
    total: int
    addresses: int = 0


class Delivery(Struct, frozen=True):
    """One message, sent `at` seconds after the start. All copies of a message share its `event` id."""

    at: float
    event: str
    path: str
    data: dict[str, Any]


class DemoPlan(Struct, frozen=True):
    """`accounting` and `mail` name the fault of the first request for an order; later requests have none."""

    seed: int
    orders: list[Order]
    deliveries: list[Delivery]
    accounting: dict[int, str]
    mail: dict[int, str]

    def save(self, place: Path) -> None:
        (place / PLAN).write_bytes(msgspec.json.encode(self))


def read_plan(place: Path) -> DemoPlan:
    return msgspec.json.decode((place / PLAN).read_bytes(), type=DemoPlan)


def make_plan(orders: int, seed: int) -> DemoPlan:
    dice = random.Random(seed)  # noqa: S311 - a seed must draw the same plan again
    numbers = list(range(1, orders + 1))
    large, mail, accounting = _faults(orders, dice)
    made = [Order(n, _total(n, large, dice), dice.choice((0, 0, 0, 0, 3))) for n in numbers]
    deliveries = [delivery for order in made for delivery in _deliveries(order, dice)]
    return DemoPlan(seed, made, sorted(deliveries, key=lambda delivery: delivery.at), accounting, mail)


def _faults(orders: int, dice: random.Random) -> tuple[int, dict[int, str], dict[int, str]]:
    """Return the large order, and the faults of the mail server and the accounting service.

    No order meets two faults. Kills come first, because recovering from one takes longest.
    """
    kinds = {
        "killed-before": max(1, orders // 50),
        "killed-after": max(1, orders // 25),
        "lost": max(1, orders // 12),
        "slow": max(1, orders // 25),
    }
    early = _spread(kinds["killed-before"] + kinds["killed-after"], orders, dice)
    rest = [number for number in range(1, orders + 1) if number not in early]
    dice.shuffle(rest)
    faults = [fault for fault, count in kinds.items() for _ in range(count)]
    chosen = [*early, *rest]
    left = chosen[len(faults) :]
    return left[0], {left[1]: "lost"}, dict(zip(chosen, faults, strict=False))


def _spread(kills: int, orders: int, dice: random.Random) -> list[int]:
    """Keep kills apart: two at once would kill both processes of a program."""
    apart = max(1, orders * 3 // 4 // kills)
    return [1 + nth * apart + dice.randrange(max(1, apart // 2)) for nth in range(kills)]


def _total(number: int, large: int, dice: random.Random) -> int:
    return LIMIT + dice.randrange(1_000, 4_000) if number == large else dice.randrange(20, 400)


def _deliveries(order: Order, dice: random.Random) -> Iterator[Delivery]:
    at = order.id * PACE
    data = {"order": order.id, "total": order.total, "mail": f"customer{order.id}@example.org"}
    yield from _copies(at, f"evt_{order.id}_placed", "orders", data, dice)
    if dice.random() < 0.1:  # the shop was restarted, and sends the order with a new event id
        yield from _copies(at + LATEST * dice.random(), f"evt_{order.id}_placed_anew", "orders", data, dice)
    for version in range(1, order.addresses + 1):
        moved = {"order": order.id, "version": version, "address": f"{version} Moving Street"}
        sent = at + CHANGED * (version + dice.random())  # copies of one version may arrive after the next
        yield from _copies(sent, f"evt_{order.id}_address_{version}", "addresses", moved, dice)


def _copies(at: float, event: str, path: str, data: dict[str, Any], dice: random.Random) -> Iterator[Delivery]:
    for copy in range(dice.choice(COPIES)):
        later = 0.0 if copy == 0 or dice.random() < AT_ONCE else dice.random() * LATEST
        yield Delivery(round(at + later, 3), event, path, data)
