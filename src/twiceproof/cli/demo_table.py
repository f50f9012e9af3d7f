"""The demo's outcome: both programs side by side, for people and as JSON."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ..demo.evening import Report, Side
from .output import show_table, show_text

__all__ = ["report_shape", "show_report"]


def show_report(report: Report) -> None:
    show_text("\nWhat happened, counted by the accounting service and the mail server:\n")
    naive, ours = report.sides["naive"], report.sides["twiceproof"]
    rows = [(words, _cell(naive, name), _cell(ours, name)) for words, name in ROWS]
    people = len(report.approved) + len(report.settled)
    orders = len(report.plan.orders)
    show_table(
        ("", "NAIVE SCRIPT", "TWICEPROOF"), [("orders", orders, orders), *rows, ("questions to a person", 0, people)]
    )


ROWS = (
    ("messages from the shop", "deliveries"),
    ("  recognised as known", "repeats"),
    ("killed in the middle of work", "kills"),
    ("answers lost", "answers_lost"),
    ("invoices made", "invoices"),
    ("  too many", "invoices_twice"),
    ("  missing", "invoices_missing"),
    ("billed too much, EUR", "billed_too_much"),
    ("e-mails sent", "mails"),
    ("  too many", "mails_twice"),
    ("  missing", "mails_missing"),
    ("addresses out of date", "addresses_old"),
    ("large orders billed unasked", "billed_unasked"),
)


def _cell(side: Side, name: str) -> str:
    found = getattr(side.did, name) if hasattr(side.did, name) else getattr(side, name)
    return f"{found:,}"


def report_shape(report: Report, ledger: str | None) -> dict[str, Any]:
    plan = report.plan
    return {
        "orders": len(plan.orders),
        "seed": plan.seed,
        "messages": len(plan.deliveries),
        **{side: _side_shape(found) for side, found in report.sides.items()},
        "approved": report.approved,
        "settled": report.settled,
        "waiting": report.waiting,
        "seconds": report.seconds,
        "ok": report.ok,
        "ledger": ledger,
    }


def _side_shape(side: Side) -> dict[str, Any]:
    found = structs.asdict(side)
    return {**{name: value for name, value in found.items() if name != "did"}, **structs.asdict(side.did)}
