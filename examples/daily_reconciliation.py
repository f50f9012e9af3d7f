"""A daily reconciliation finds a second invoice that slipped through, and voids the right one after an approval."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from twiceproof import App
from twiceproof.reconcile import Cap, Comparison, Finder, compensate, sql_rows, start

app = App("sqlite:///ledger.db")
SHOP, BOOKS = "shop.db", "books.db"


def run_sql(database: str, statement: str, values: tuple[object, ...] = ()) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement, values)


def void_invoice(result: dict[str, str]) -> None:
    print("  void", result["id"])
    run_sql(BOOKS, "DELETE FROM invoices WHERE id = ?", (result["id"],))


@app.step(repeat="safe", undo=void_invoice)
def create_invoice(order: dict[str, int]) -> dict[str, str]:
    invoice = f"in_{order['id']}"
    run_sql(BOOKS, "INSERT OR IGNORE INTO invoices VALUES (?, ?, ?)", (invoice, order["id"], order["total"]))
    return {"id": invoice}


@app.flow(key="order:{order[id]}")
def sync_order(order: dict[str, int]) -> str:
    return create_invoice(order)["id"]


@app.reconcile(every="1d", at="03:00", grace="0s")  # in earnest: grace="2h"
def invoices(find: Finder) -> Iterator[Comparison]:
    shop = find.source("shop", sql_rows(f"sqlite:///{SHOP}", "SELECT id, total FROM orders"), key="order:{id}")
    books = find.source(
        "books", sql_rows(f"sqlite:///{BOOKS}", "SELECT * FROM invoices"), key="order:{reference}", id="{id}"
    )
    yield find.duplicates(books, then=compensate(create_invoice, cap=Cap(0)))  # each one needs an approval
    yield find.missing(shop, books, then=start(sync_order))
    yield find.differ(shop, books, fields={"total": "amount"}, tolerance="0.01")
    yield find.disagree(find.ledger(sync_order, step=create_invoice), books)


for name in (SHOP, BOOKS):
    Path(name).unlink(missing_ok=True)
run_sql(SHOP, "CREATE TABLE orders (id INTEGER, total INTEGER)")
run_sql(BOOKS, "CREATE TABLE invoices (id TEXT PRIMARY KEY, reference INTEGER, amount INTEGER)")
for number in range(1, 31):
    run_sql(SHOP, "INSERT INTO orders VALUES (?, ?)", (number, 100 * number))
    sync_order({"id": number, "total": 100 * number})
run_sql(BOOKS, "INSERT INTO invoices VALUES ('by_hand', 17, 1700)")  # somebody was too helpful

print("first day")
report = app.reconcile_now("invoices")
for found in report.findings:
    print(" ", found.key, found.summary, found.refs)
app.worker().run(until_idle=True)  # the plan is over its cap, and waits
(approval,) = app.approvals()
print(" ", approval.shown["lines"])

print("approved")
app.decide(approval.id, True, by="ann")
app.worker().run(until_idle=True)

print("next day")
report = app.reconcile_now("invoices")
print(" ", len(report.findings), "findings,", report.resolved, "resolved")
app.close()

# Prints:
# first day
#   order:17 2 in books, where 1 should be ('by_hand', 'in_17')
#   ['undo create_invoice by_hand of order:17']
# approved
#   void by_hand
# next day
#   0 findings, 1 resolved
