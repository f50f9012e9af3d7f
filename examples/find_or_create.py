"""Find or create in a SQL database: two orders of one customer overlap, and the customer is created once."""

import sqlite3
import threading

from twiceproof import App
from twiceproof.effects import sql
from twiceproof.effects.sql import RowEffect

app = App("sqlite:///ledger.db")
CRM = "sqlite:///crm.db"

with sqlite3.connect("crm.db") as crm:
    crm.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, email TEXT NOT NULL UNIQUE, name TEXT)")
crm.close()


@app.effect
def customer(email: str, name: str) -> RowEffect:
    return sql.find_or_create(CRM, "customers", key={"email": email}, values={"name": name})


@app.flow(key="order:{number}")
def take_order(number: int, email: str) -> tuple[int, bool]:
    row = customer(email, "Ana")
    return row["id"], row.created


told: list[tuple[int, bool]] = []
orders = [threading.Thread(target=lambda n=n: told.append(take_order(n, "ana@example.com"))) for n in range(20)]
for order in orders:
    order.start()
for order in orders:
    order.join()

print("customers:", {number for number, _ in told})
print("created:", sum(created for _, created in told), "time in", len(told), "orders")

app.close()

# Prints:
# customers: {1}
# created: 1 time in 20 orders
