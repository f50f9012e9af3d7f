"""Killed before and after each of five steps, and the effects counted: what each way to declare a step does then."""

import os
import sys
from collections import Counter
from pathlib import Path

from twiceproof import Absent, App, Happened, NeedsReview, check

WORLD = Path("world.txt")  # the effects, counted outside the ledger
STEPS = ("upsert_customer", "create_invoice", "charge", "mark_synced", "send_confirmation")
POINTS = [(step, when) for step in STEPS for when in ("before", "after")]
CRASH = tuple(os.environ.get("CRASH", "").split(":"))

app = App("sqlite:///sync.db")


def happen(effect: str) -> None:
    """Record an effect; the process that is to crash exits right before or right after one of them."""
    step = effect.split()[0]
    if (step, "before") == CRASH:
        os._exit(1)
    with WORLD.open("a") as world:
        world.write(effect + "\n")
    if (step, "after") == CRASH:
        os._exit(1)


def find_invoice(order: dict[str, int]) -> Happened | type[Absent]:
    made = f"create_invoice {order['id']}" in WORLD.read_text().splitlines()
    return Happened(f"inv-{order['id']}") if made else Absent


@app.step(repeat="safe")
def upsert_customer(order: dict[str, int]) -> None:
    happen(f"upsert_customer {order['id']}")


@app.step(repeat=check(find_invoice, settling=0))
def create_invoice(order: dict[str, int]) -> str:
    happen(f"create_invoice {order['id']}")
    return f"inv-{order['id']}"


@app.step(repeat="keyed")
def charge(order: dict[str, int]) -> None:
    happen(f"charge {order['id']} {app.effect_key()}")  # the provider dedupes on the key


@app.step(repeat="safe")
def mark_synced(order: dict[str, int]) -> None:
    happen(f"mark_synced {order['id']}")


@app.step(repeat="never")
def send_confirmation(order: dict[str, int]) -> None:
    happen(f"send_confirmation {order['id']}")


@app.flow(key="shop:order:{order[id]}", lease="500ms", on_duplicate="wait")
def sync_order(order: dict[str, int]) -> str:
    upsert_customer(order)
    invoice = create_invoice(order)
    charge(order)
    mark_synced(order)
    send_confirmation(order)
    return invoice


def doomed(number: int, step: str, when: str) -> None:
    """Run this program again, and let it exit at this point."""
    os.spawnve(
        os.P_WAIT, sys.executable, [sys.executable, __file__, str(number)], {**os.environ, "CRASH": f"{step}:{when}"}
    )


def recover(number: int) -> str:
    try:
        return sync_order({"id": number})
    except NeedsReview:
        return "needs review"


def main() -> None:
    WORLD.touch()
    for number, point in enumerate(POINTS):
        doomed(number, *point)
    ended = [recover(number) for number in range(len(POINTS))]
    effects = Counter(WORLD.read_text().splitlines())
    for number, (step, when) in enumerate(POINTS):
        seen = [sum(n for what, n in effects.items() if what.split()[:2] == [name, str(number)]) for name in STEPS]
        print(f"killed {when:6} {step:17}  {ended[number]:12}", dict(zip("uicms", seen, strict=True)))
    print("invoices made twice:", sum(n > 1 for what, n in effects.items() if what.startswith("create_invoice")))
    print("keys charged:", len([what for what in effects if what.startswith("charge")]), "of", len(POINTS), "orders")
    print("mails sent twice:", sum(n > 1 for what, n in effects.items() if what.startswith("send")))


if len(sys.argv) > 1:
    sync_order({"id": int(sys.argv[1])})
else:
    main()
app.close()

# Prints:
# killed before upsert_customer    inv-0        {'u': 1, 'i': 1, 'c': 1, 'm': 1, 's': 1}
# killed after  upsert_customer    inv-1        {'u': 2, 'i': 1, 'c': 1, 'm': 1, 's': 1}
# killed before create_invoice     inv-2        {'u': 1, 'i': 1, 'c': 1, 'm': 1, 's': 1}
# killed after  create_invoice     inv-3        {'u': 1, 'i': 1, 'c': 1, 'm': 1, 's': 1}
# killed before charge             inv-4        {'u': 1, 'i': 1, 'c': 1, 'm': 1, 's': 1}
# killed after  charge             inv-5        {'u': 1, 'i': 1, 'c': 2, 'm': 1, 's': 1}
# killed before mark_synced        inv-6        {'u': 1, 'i': 1, 'c': 1, 'm': 1, 's': 1}
# killed after  mark_synced        inv-7        {'u': 1, 'i': 1, 'c': 1, 'm': 2, 's': 1}
# killed before send_confirmation  needs review {'u': 1, 'i': 1, 'c': 1, 'm': 1, 's': 0}
# killed after  send_confirmation  needs review {'u': 1, 'i': 1, 'c': 1, 'm': 1, 's': 1}
# invoices made twice: 0
# keys charged: 10 of 10 orders
# mails sent twice: 0
