"""Claim first: the same order arrives three times, one invoice is made."""

from dataclasses import dataclass
from decimal import Decimal

from twiceproof import App, PayloadMismatch

app = App("sqlite:///orders.db")
invoices: list[str] = []


@dataclass
class Invoice:
    id: str
    total: Decimal


@app.once(key="shop:order:{order[id]}")
def create_invoice(order: dict[str, str]) -> Invoice:
    invoices.append(order["id"])  # stands for the call to the accounting system
    return Invoice(f"inv-{order['id']}", Decimal(order["total"]))


order = {"id": "10492", "total": "119.90"}
for _ in range(3):
    print(create_invoice(order))
print("invoices made:", len(invoices))

try:
    create_invoice({"id": "10492", "total": "9.90"})
except PayloadMismatch as error:
    print(error)

app.close()

# Prints:
# Invoice(id='inv-10492', total=Decimal('119.90'))
# Invoice(id='inv-10492', total=Decimal('119.90'))
# Invoice(id='inv-10492', total=Decimal('119.90'))
# invoices made: 1
# create_invoice for 'shop:order:10492' is known with another payload; use another key, send what was sent the first time, or leave out what varies with ignore=.
