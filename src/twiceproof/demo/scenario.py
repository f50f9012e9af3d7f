"""What the demo will do, drawn from a seed: the orders, how their messages arrive, and the weather."""

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
FEWEST = 10  # orders: with fewer there is no room for one of each kind of weather
LIMIT = 5_000  # EUR: an order above it has to be approved
PACE = 0.05  # seconds from one order to the next
LATEST = 2.0  # seconds after the first copy of a message
COPIES = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4)  # how often one message is delivered
CHANGED = 0.5  # seconds from one change of an address to the next
AT_ONCE = 0.3  # of the further copies: sent at the same moment as the first


class Order(Struct, frozen=True):
    """`addresses` is how often the customer changes the address; the last one counts."""

    id: int
    total: int
    addresses: int = 0


class Delivery(Struct, frozen=True):
    """One message, sent once: `at` seconds after the doors open. All copies of a message share its `event` id."""

    at: float
    event: str
    path: str
    data: dict[str, Any]


class DemoPlan(Struct, frozen=True):
    """`accounting` and `mail` say what befalls the first request for an order; a later one finds good weather."""

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
    dice = random.Random(seed)  # noqa: S311 - a demo's dice, to be thrown again
    numbers = list(range(1, orders + 1))
    large, mail, accounting = _weather(orders, dice)
    made = [Order(n, _total(n, large, dice), dice.choice((0, 0, 0, 0, 3))) for n in numbers]
    deliveries = [delivery for order in made for delivery in _deliveries(order, dice)]
    return DemoPlan(seed, made, sorted(deliveries, key=lambda delivery: delivery.at), accounting, mail)


def _weather(orders: int, dice: random.Random) -> tuple[int, dict[int, str], dict[int, str]]:
    """No order meets two kinds of it. The longer a kill is to be got over, the earlier it comes."""
    kinds = {
        "killed-before": max(1, orders // 50),
        "killed-after": max(1, orders // 25),
        "lost": max(1, orders // 12),
        "slow": max(1, orders // 25),
    }
    early = _spread(kinds["killed-before"] + kinds["killed-after"], orders, dice)
    rest = [number for number in range(1, orders + 1) if number not in early]
    dice.shuffle(rest)
    words = [word for word, count in kinds.items() for _ in range(count)]
    chosen = [*early, *rest]
    left = chosen[len(words) :]
    return left[0], {left[1]: "lost"}, dict(zip(chosen, words, strict=False))


def _spread(kills: int, orders: int, dice: random.Random) -> list[int]:
    """Not two at once: a program of two processes would be gone, and nothing to be seen."""
    apart = max(1, orders * 3 // 4 // kills)
    return [1 + nth * apart + dice.randrange(max(1, apart // 2)) for nth in range(kills)]


def _total(number: int, large: int, dice: random.Random) -> int:
    return LIMIT + dice.randrange(1_000, 4_000) if number == large else dice.randrange(20, 400)


def _deliveries(order: Order, dice: random.Random) -> Iterator[Delivery]:
    at = order.id * PACE
    data = {"order": order.id, "total": order.total, "mail": f"customer{order.id}@example.org"}
    yield from _copies(at, f"evt_{order.id}_placed", "orders", data, dice)
    if dice.random() < 0.1:  # the shop itself was restarted, and tells of the order under a new id
        yield from _copies(at + LATEST * dice.random(), f"evt_{order.id}_placed_anew", "orders", data, dice)
    for version in range(1, order.addresses + 1):
        moved = {"order": order.id, "version": version, "address": f"{version} Moving Street"}
        sent = at + CHANGED * (version + dice.random())  # copies of one may come after the next
        yield from _copies(sent, f"evt_{order.id}_address_{version}", "addresses", moved, dice)


def _copies(at: float, event: str, path: str, data: dict[str, Any], dice: random.Random) -> Iterator[Delivery]:
    for copy in range(dice.choice(COPIES)):
        later = 0.0 if copy == 0 or dice.random() < AT_ONCE else dice.random() * LATEST
        yield Delivery(round(at + later, 3), event, path, data)
