"""Large ledgers for the pages that people look at: what a shop's real runs left behind once, so many times over."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from twiceproof import App
from twiceproof.app.functions import FlowFunction
from twiceproof.claims.claim import RUN_POINTER, index_address, short_id
from twiceproof.stores.base import Engine

from .contenders.row import COLUMNS
from .fill import Row

__all__ = ["FLOW", "MIX", "ReadCounter", "Templates", "declare_shop", "ledger_rows", "make_templates"]

FLOW = "sync_order"
MARK = "0rd3r"  # in place of an order's number
STEPS = 5
# Of a hundred runs in a shop that has been open for a month.
MIX = {"done": 90, "failed": 4, "waiting": 3, "queued": 2, "review": 1}
SPACE, KIND, KEY, NUMBER, FENCE, NONCE, CREATED, UPDATED, BODY = 0, 1, 2, 4, 5, 6, 7, 8, 12
SECONDS_APART = 2.0  # between the beginnings of two runs


class Away(TimeoutError):
    """Nobody answered: whether it was done is unknown."""


def declare_shop(app: App) -> FlowFunction[[Any], dict[str, str]]:
    """A flow of five steps that can end in every state."""

    @app.step(repeat="safe", external="{result}")
    def customer(order: Any) -> str:
        return f"cust_{order['id']}"

    @app.step(repeat="safe", external="{result}")
    def invoice(order: Any) -> str:
        return f"inv_{order['id']}"

    @app.step(repeat="safe")
    def mark_synced(order: Any) -> None: ...

    @app.step(repeat="safe")
    def notify(order: Any) -> dict[str, str]:
        return {"notified": order["id"]}

    @app.step(repeat="never")
    def confirmation(order: Any) -> None:
        if order["state"] == "review":
            raise Away("the mail server did not answer in 30 s")

    @app.flow(key="shop:order:{order[id]}")
    def sync_order(order: Any) -> dict[str, str]:
        known, billed = customer(order), invoice(order)
        mark_synced(order)
        notify(order)
        if order["state"] == "waiting":
            app.approve("charge", show={"order": order["id"]}, requester="shop")
        confirmation(order)
        if order["state"] == "failed":
            raise ValueError("422 unknown customer")
        return {"customer": known, "invoice": billed}

    return sync_order


class Templates(Struct, frozen=True):
    """The rows of one run in each state, with a mark in place of its order's number."""

    rows: Mapping[str, Sequence[Row]]

    def copy(self, state: str, name: str, number: int, at: float) -> Iterator[Row]:
        """Yield the rows of another run like it. Times are moved to `at`; numbers grow."""
        mark = MARK + state
        for nth, row in enumerate(self.rows[state]):
            made = list(row)
            made[SPACE], made[BODY] = row[SPACE].replace(mark, name), row[BODY].replace(mark, name)
            made[KEY] = row[KEY].replace(mark, name)
            made[NUMBER] = made[FENCE] = number * 100 + nth
            made[NONCE] = f"{number:x}-{nth}"
            made[CREATED] = made[UPDATED] = at
            if row[KIND] == RUN_POINTER:
                made[SPACE] = index_address(short_id(_space_of(name))).space
            yield tuple(made)


def _space_of(name: str) -> str:
    return f"default/{FLOW}/shop:order:{name}"


def make_templates(directory: Path) -> Templates:
    """Carry out one run in each state, and keep its rows."""
    path = directory / "templates.db"
    with App(f"sqlite:///{path}") as app:
        flow = declare_shop(app)
        for state in MIX:
            if state != "queued":
                flow.start({"id": MARK + state, "state": state})
        app.worker().run(until_idle=True)
        flow.start({"id": f"{MARK}queued", "state": "queued"})
    db = sqlite3.connect(path)
    try:
        return Templates({state: _rows_of(db, state) for state in MIX})
    finally:
        db.close()


def _rows_of(db: sqlite3.Connection, state: str) -> list[Row]:
    pointer = index_address(short_id(_space_of(MARK + state))).space
    sql = f"SELECT {COLUMNS} FROM twiceproof_records WHERE instr(space, ?) OR space = ?"
    return db.execute(sql, (MARK + state, pointer)).fetchall()


def ledger_rows(templates: Templates, count: int, mix: Mapping[str, int] = MIX) -> Iterator[Row]:
    """Yield the rows of so many runs, those of all states mixed, the latest of them now."""
    began = time.time() - count * SECONDS_APART
    for number, state in zip(range(1, count + 1), itertools.cycle(_mixed(mix)), strict=False):
        yield from templates.copy(state, str(1_000_000 + number), number, began + number * SECONDS_APART)


def _mixed(mix: Mapping[str, int]) -> list[str]:
    """Return the states of a hundred runs, not one state after the other."""
    states = [state for state, count in mix.items() for _ in range(count)]
    return [states[nth * 37 % len(states)] for nth in range(len(states))]


class ReadCounter:
    """Counts the records that an engine hands out, and how often it is asked."""

    def __init__(self, engine: Engine) -> None:
        self.records = self.requests = 0
        for name, size in COUNTED.items():
            if hasattr(engine, name):
                setattr(engine, name, self._counting(getattr(engine, name), size))

    def _counting(self, method: Callable[..., Any], size: Callable[[Any], int]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            found = method(*given, **named)
            self.requests += 1
            self.records += size(found)
            return found

        return counted

    def clear(self) -> None:
        self.records = self.requests = 0


COUNTED: dict[str, Callable[[Any], int]] = {
    "fetch": len,
    "scan": lambda page: len(page.records),
    "beside": len,
    "due": lambda due: len(due.records),
}
