"""The demo's outcome: both programs side by side, for people and as JSON."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ..demo.evening import Report, Side
from .output import show_table, show_text, with_rich

__all__ = ["report_shape", "show_report"]

HEAD = ("", "NAIVE SCRIPT", "TWICEPROOF")
Row = tuple[str, int, int]

WEATHER = (
    ("messages that arrived", "deliveries"),
    ("  recognised as known", "repeats"),
    ("killed in the middle of work", "kills"),
    ("answers lost", "answers_lost"),
)
DONE = (("invoices made", "invoices"), ("e-mails sent", "mails"))
WRONG = (
    ("invoices too many", "invoices_twice"),
    ("billed too much, in EUR", "billed_too_much"),
    ("e-mails too many", "mails_twice"),
    ("invoices missing", "invoices_missing"),
    ("e-mails missing", "mails_missing"),
    ("old addresses written over new", "addresses_old"),
    ("large orders billed unasked", "billed_unasked"),
)


def show_report(report: Report) -> None:
    show_text("\nWhat happened, counted by the accounting service and the mail server:\n")
    orders, asked = len(report.plan.orders), len(report.approved) + len(report.settled)
    blocks = (
        [("orders", orders, orders), *_rows(report, WEATHER)],
        [*_rows(report, DONE), ("questions to a person", 0, asked)],
        _rows(report, WRONG),
    )
    if with_rich():
        _show_rich(blocks)
    else:
        show_table(HEAD, [line for block in blocks for line in (*map(_line, block), ("", "", ""))][:-1])


def _rows(report: Report, what: tuple[tuple[str, str], ...]) -> list[Row]:
    naive, ours = report.sides["naive"], report.sides["twiceproof"]
    return [(words, _found(naive, name), _found(ours, name)) for words, name in what]


def _found(side: Side, name: str) -> int:
    return int(getattr(side.did if hasattr(side.did, name) else side, name))


def _line(row: Row) -> tuple[str, str, str]:
    return row[0], f"{row[1]:,}".rjust(len(HEAD[1])), f"{row[2]:,}".rjust(len(HEAD[2]))


def _show_rich(blocks: tuple[list[Row], ...]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for nth, name in enumerate(HEAD):
        table.add_column(name, justify="right" if nth else "left")
    for block in blocks:
        for words, *counts in block:
            wrong = block is blocks[-1]
            styles = [("bold red" if count else "green") if wrong else "" for count in counts]
            table.add_row(words, *(Text(f"{count:,}", style) for count, style in zip(counts, styles, strict=True)))
        table.add_section()
    Console().print(table)


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
