"""Ten flows that are not safe to repeat, each for another reason. `outside` stands for the world."""

from __future__ import annotations

import itertools
from typing import Any

from twiceproof import Absent, App, Happened, check, keyed

app = App("memory://")
outside: list[str] = []
answered: dict[str, str] = {}  # a provider that knows idempotency keys
numbers = itertools.count(1)

Order = dict[str, Any]


# 1. Declared harmless, and it is not.


@app.step(repeat="safe")
def append_invoice(order: Order) -> None:
    outside.append(f"invoice {order['id']}")


@app.flow(key="order:{order[id]}")
def safe_that_is_not(order: Order) -> None:
    append_invoice(order)


# 2. Keyed, but another key is sent each time.


def provider(key: str, what: str) -> None:
    if key not in answered:
        answered[key] = what
        outside.append(what)


@app.step(repeat=keyed(window="24h"))
def charge_with_a_new_key(order: Order) -> None:
    provider(f"attempt-{next(numbers)}", f"charge {order['id']}")


@app.flow(key="order:{order[id]}")
def keyed_with_changing_key(order: Order) -> None:
    charge_with_a_new_key(order)


# 3. A probe that never finds anything.


@app.step(repeat=check(lambda order: Absent))
def create_checked(order: Order) -> str:
    outside.append(f"invoice {order['id']}")
    return "inv"


@app.flow(key="order:{order[id]}")
def probe_that_never_finds(order: Order) -> str:
    return create_checked(order)


# 4. A probe that always finds something.


@app.step(repeat=check(lambda order: Happened("inv")))
def create_believed(order: Order) -> str:
    outside.append(f"invoice {order['id']}")
    return "inv"


@app.flow(key="order:{order[id]}")
def probe_that_always_finds(order: Order) -> str:
    return create_believed(order)


# 5. An effect in the flow's body, outside of any step.


@app.step(repeat="safe")
def nothing(order: Order) -> None: ...


@app.flow(key="order:{order[id]}")
def effect_in_the_body(order: Order) -> None:
    outside.append(f"mail {order['id']}")
    nothing(order)


# 6. Two effects in one step: the first is repeated with the second.


@app.step(repeat="safe")
def save_and_mail(order: Order) -> None:
    if f"saved {order['id']}" not in outside:
        outside.append(f"saved {order['id']}")
    outside.append(f"mail {order['id']}")


@app.flow(key="order:{order[id]}")
def two_effects_in_one_step(order: Order) -> None:
    save_and_mail(order)


# 7. A batch behind one marker.


@app.step(repeat="safe")
def mail_all(order: Order) -> None:
    for line in order["lines"]:
        outside.append(f"line {line}")


@app.flow(key="order:{order[id]}")
def batch_with_one_marker(order: Order) -> None:
    mail_all(order)


# 8. A read-modify-write that counts.

stock = {"level": 10}


@app.step(repeat="safe")
def take_from_stock(order: Order) -> None:
    stock["level"] -= 1
    outside.append(f"stock {stock['level']}")


@app.flow(key="order:{order[id]}")
def counting_down(order: Order) -> None:
    take_from_stock(order)


# 9. An undo that may be repeated, and is not harmless.


@app.step(repeat="safe")
def refund(order: Order) -> None:
    outside.append(f"refund {order['id']}")


@app.step(repeat="safe", undo=refund)
def charge_once(order: Order) -> None:
    if f"charge {order['id']}" not in outside:
        outside.append(f"charge {order['id']}")


@app.step(repeat="safe")
def ship(order: Order) -> None:
    if f"ship {order['id']}" not in outside:
        outside.append(f"ship {order['id']}")


@app.flow(key="order:{order[id]}")
def undo_that_repeats(order: Order) -> None:
    charge_once(order)
    ship(order)


# 10. A result that is another one each time.


@app.step(repeat="safe")
def draw_number(order: Order) -> int:
    return next(numbers)


@app.flow(key="order:{order[id]}")
def changing_result(order: Order) -> str:
    number = draw_number(order)
    outside.append(f"number {number}") if f"number {number}" not in outside else None
    return f"{order['id']}-{number}"


FLOWS = (
    safe_that_is_not,
    keyed_with_changing_key,
    probe_that_never_finds,
    probe_that_always_finds,
    effect_in_the_body,
    two_effects_in_one_step,
    batch_with_one_marker,
    counting_down,
    undo_that_repeats,
    changing_result,
)
