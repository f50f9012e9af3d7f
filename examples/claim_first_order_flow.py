"""Claim first: the shop delivers the same order five times, a worker runs it once, every delivery gets one answer."""

import sqlite3
from pathlib import Path

from twiceproof import App
from twiceproof.effects import sql

SHOP = f"sqlite:///{Path(__file__).resolve().with_name('shop.db')}"
app = App(SHOP)  # the ledger is in the shop's own database: a row and its entry are committed together
TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL);
CREATE TABLE invoices (number INTEGER PRIMARY KEY, order_id INTEGER NOT NULL UNIQUE);
"""


@app.effect
def save(order: dict[str, int]) -> sql.RowEffect:
    return sql.upsert(SHOP, "orders", key={"id": order["id"]}, values={"total": order["total"]})


@app.effect(external="invoice:{result.values[number]}")
def invoice(order: dict[str, int]) -> sql.RowEffect:
    return sql.find_or_create(SHOP, "invoices", key={"order_id": order["id"]})


@app.flow(key="shop:order:{order[id]}")
def take_order(order: dict[str, int]) -> int:
    save(order)
    return int(invoice(order)["number"])


def main() -> None:
    with sqlite3.connect(SHOP.removeprefix("sqlite:///")) as database:
        database.executescript(TABLES)
    handles = [take_order.start({"id": 10492, "total": 120}) for _ in range(5)]  # claimed before any work is done
    print("runs:", len({handle.id for handle in handles}), "state:", handles[0].state)
    app.worker().run(until_idle=True)
    print("answers:", {handle.result(timeout=1) for handle in handles})
    print("invoices:", database.execute("SELECT number, order_id FROM invoices").fetchall())
    for step in app.history("take_order/shop:order:10492").steps:
        print(*filter(None, (step.name, step.repeat, step.external)))
    database.close()
    app.close()


if __name__ == "__main__":
    main()

# Prints:
# runs: 1 state: queued
# answers: {1}
# invoices: [(1, 10492)]
# save transaction
# invoice transaction invoice:1
