"""The same ten, as they should be written."""

from __future__ import annotations

from typing import Any

from twiceproof import Absent, App, Happened, check

app = App("memory://")
outside: list[str] = []
answered: dict[str, str] = {}

Order = dict[str, Any]


def add_once(what: str) -> None:
    """Set-to-X: the second time changes nothing."""
    if what not in outside:
        outside.append(what)


@app.step(repeat="safe")
def upsert_invoice(order: Order) -> None:
    add_once(f"invoice {order['id']}")


@app.flow(key="order:{order[id]}")
def safe_that_is_not(order: Order) -> None:
    upsert_invoice(order)


@app.step(repeat="keyed")
def charge_with_our_key(order: Order) -> None:
    if app.effect_key() not in answered:
        answered[app.effect_key()] = "charged"
        outside.append(f"charge {order['id']}")


@app.flow(key="order:{order[id]}")
def keyed_with_changing_key(order: Order) -> None:
    charge_with_our_key(order)


def find_invoice(order: Order) -> Any:
    return Happened("inv") if f"invoice {order['id']}" in outside else Absent


@app.step(repeat=check(find_invoice))
def create_checked(order: Order) -> str:
    outside.append(f"invoice {order['id']}")
    return "inv"


@app.flow(key="order:{order[id]}")
def probe_that_never_finds(order: Order) -> str:
    return create_checked(order)


@app.flow(key="order:{order[id]}")
def probe_that_always_finds(order: Order) -> str:
    return create_checked(order)


@app.step(repeat="never")
def mail(order: Order) -> None:
    outside.append(f"mail {order['id']}")


@app.flow(key="order:{order[id]}")
def effect_in_the_body(order: Order) -> None:
    mail(order)


@app.step(repeat="safe")
def save(order: Order) -> None:
    add_once(f"saved {order['id']}")


@app.flow(key="order:{order[id]}")
def two_effects_in_one_step(order: Order) -> None:
    save(order)
    mail(order)


@app.step(repeat="never")
def mail_line(line: str) -> None:
    outside.append(f"line {line}")


@app.flow(key="order:{order[id]}")
def batch_with_one_marker(order: Order) -> None:
    app.each(order["lines"], mail_line, key=str)


def find_booking(order: Order) -> Any:
    return Happened(None) if f"booked {order['id']}" in outside else Absent


@app.step(repeat=check(find_booking))
def book_from_stock(order: Order) -> None:
    outside.append(f"booked {order['id']}")


@app.flow(key="order:{order[id]}")
def counting_down(order: Order) -> None:
    book_from_stock(order)


def find_refund(order: Order) -> Any:
    return Happened(None) if f"refund {order['id']}" in outside else Absent


@app.step(repeat=check(find_refund))
def refund(order: Order) -> None:
    outside.append(f"refund {order['id']}")


@app.step(repeat="safe", undo=refund)
def charge_once(order: Order) -> None:
    add_once(f"charge {order['id']}")


@app.step(repeat="safe")
def ship(order: Order) -> None:
    add_once(f"ship {order['id']}")


@app.flow(key="order:{order[id]}")
def undo_that_repeats(order: Order) -> None:
    charge_once(order)
    ship(order)


@app.step(repeat="safe")
def number_of(order: Order) -> int:
    return 1_000 + int(order["id"])


@app.flow(key="order:{order[id]}")
def changing_result(order: Order) -> str:
    number = number_of(order)
    add_once(f"number {number}")
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
