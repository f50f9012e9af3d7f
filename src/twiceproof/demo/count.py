"""Counts what happened, in the books of the outside world. The ledger is not asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct

from .accounting import ADDRESSES, INVOICES
from .child import Book
from .mail_server import MAILS
from .plan import LIMIT, Plan

__all__ = ["Count", "count", "invoice_of", "large_orders_billed", "was_mailed"]


class Count(Struct, frozen=True):
    """What one program did outside. Each extra invoice or mail counts."""

    invoices: int
    invoices_twice: int
    invoices_missing: int
    billed_too_much: int  # EUR
    mails: int
    mails_twice: int
    mails_missing: int
    addresses_old: int

    @property
    def flawless(self) -> bool:
        return not (
            self.invoices_twice or self.invoices_missing or self.mails_twice or self.mails_missing or self.addresses_old
        )


def count(place: Path, plan: Plan, side: str) -> Count:
    invoices = Counter(line["order"] for line in _lines(place / INVOICES, side))
    mails = Counter(line["order"] for line in _lines(place / MAILS, side))
    return Count(
        invoices=invoices.total(),
        invoices_twice=_twice(invoices),
        invoices_missing=_missing(invoices, plan),
        billed_too_much=sum((invoices[order.id] - 1) * order.total for order in plan.orders if invoices[order.id]),
        mails=mails.total(),
        mails_twice=_twice(mails),
        mails_missing=_missing(mails, plan),
        addresses_old=_old_addresses(place, plan, side),
    )


def large_orders_billed(place: Path, side: str) -> int:
    return len({line["order"] for line in _lines(place / INVOICES, side) if line["total"] > LIMIT})


def invoice_of(place: Path, side: str, order: int) -> str | None:
    return next((line["invoice"] for line in _lines(place / INVOICES, side) if line["order"] == order), None)


def was_mailed(place: Path, side: str, order: int) -> bool:
    return any(line["order"] == order for line in _lines(place / MAILS, side))


def _lines(path: Path, side: str) -> list[dict[str, Any]]:
    return [line for line in Book.read(path) if line["side"] == side]


def _twice(found: Counter[int]) -> int:
    return sum(times - 1 for times in found.values())


def _missing(found: Counter[int], plan: Plan) -> int:
    return sum(order.id not in found for order in plan.orders)


def _old_addresses(place: Path, plan: Plan, side: str) -> int:
    """What was written last is what the accounting service has."""
    last = {line["order"]: line["version"] for line in _lines(place / ADDRESSES, side)}
    return sum(last.get(order.id, 0) != order.addresses for order in plan.orders)
