"""The ledger as a source: which id the destination gave, by what a step recorded."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from twiceproof import Absent, App, Happened, Misuse, Unknown
from twiceproof.effects import http, sql
from twiceproof.effects.base import Effect, Look
from twiceproof.effects.repeat import Declared, check
from twiceproof.reconcile import Cap, compensate, sql_rows
from twiceproof.reconcile.reconciliation import RunReport

URL = "sqlite:///{}"


def books(path: Path, column: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE invoices ({column} TEXT PRIMARY KEY, reference INTEGER)")
    return connection


def declared(app: App, url: str, column: str, **ledger: Any) -> Any:
    void = app.step(repeat="safe", name="void")(lambda result: app.voided.append(result["id"]))  # type: ignore[attr-defined]
    app.voided = []  # type: ignore[attr-defined]

    @app.effect(undo=void, external=f"invoice:{{result[{column}]}}")
    def invoice(order: int) -> sql.RowEffect:
        return sql.insert_once(url, "invoices", key={column: f"in_{order}"}, values={"reference": order})

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        invoice(order)

    @app.reconcile(every="1d", grace="0s")
    def invoices(find: Any) -> Any:
        rows = find.source(
            "books", sql_rows(url, "SELECT * FROM invoices"), key="order:{reference}", id=f"{{{column}}}"
        )
        made = compensate(invoice, cap=Cap(None, None), receipt=lambda row: {column: row[column], "id": row[column]})
        yield find.duplicates(rows, then=made)
        yield find.disagree(find.ledger(sync, step=invoice, **ledger), rows)

    return sync


@pytest.mark.parametrize(("column", "ledger"), [("id", {}), ("number", {"id": "{receipt[number]}"})])
def test_a_row_that_an_effect_wrote_is_compared_by_its_own_id(
    tmp_path: Path, column: str, ledger: dict[str, str]
) -> None:
    path = tmp_path / "books.db"
    with App("memory://") as app:
        connection = books(path, column)
        sync = declared(app, URL.format(path), column, **ledger)
        for order in (1, 2, 3):
            sync(order)
        assert app.reconcile_now("invoices").findings == []
        with connection:
            connection.execute(f"UPDATE invoices SET {column} = 'another' WHERE reference = 2")
        (found,) = app.reconcile_now("invoices").findings
        assert found.summary == "the ledger recorded in_2, and books has another"
        connection.close()


def test_of_two_rows_the_one_that_an_effect_wrote_stays(tmp_path: Path) -> None:
    path = tmp_path / "books.db"
    with App("memory://") as app:
        connection = books(path, "id")
        sync = declared(app, URL.format(path), "id")
        sync(1)
        with connection:
            connection.execute("INSERT INTO invoices VALUES ('a_by_hand', 1)")
        app.reconcile_now("invoices")
        assert app.voided == ["a_by_hand"]  # type: ignore[attr-defined]
        connection.close()


# -- the look of an effect -----------------------------------------------------------------------


class Order(Struct, frozen=True):
    number: int


class Making(Struct, frozen=True):
    """An invoice to be made, at a destination whose `answers` to looks are told; `looks` are the keys of its looks."""

    number: int
    note: str
    answer: Look
    looks: list[str]

    name = "MAKE invoice"
    result_type = Any

    @property
    def repeat(self) -> Declared:
        return check(self.look)

    def describe(self) -> dict[str, Any]:
        return {"number": self.number, "note": self.note}

    def perform(self, effect_key: str) -> dict[str, str]:
        return {"id": f"in_{self.number}", "key": effect_key}

    def look(self, effect_key: str) -> Look:
        self.looks.append(effect_key)
        return self.answer


def looked_for(answer: Look, *, note: str = "", passes_note: bool = False) -> tuple[RunReport, list[str], str]:
    """Make three invoices, of which the books lack one: the report, the keys of looks, and the lost invoice's key."""
    looks: list[str] = []
    with App("memory://") as app:

        @app.effect
        def invoice(order: Order, note: str = "") -> Effect[Any]:
            return Making(order.number, note, answer, looks)

        @app.flow(key="order:{order.number}")
        def sync(order: Order) -> str:
            return str((invoice(order, note) if passes_note else invoice(order))["key"])

        @app.reconcile(every="1d", grace="0s")
        def invoices(find: Any) -> Any:
            books = find.source("books", [{"reference": 1}, {"reference": 2}], key="order:{reference}")
            yield find.disagree(find.ledger(sync, step=invoice), books)

        keys = [sync(Order(number)) for number in (1, 2, 3)]
        return app.reconcile_now("invoices"), looks, keys[-1]


@pytest.mark.parametrize(
    ("answer", "found", "complete"),
    [(Absent(), 1, True), (Happened({"id": "in_3"}), 0, True), (Unknown("busy"), 0, False)],
)
def test_an_effect_that_is_not_in_the_books_is_looked_for_at_its_destination(
    answer: Look, found: int, complete: bool
) -> None:
    report, looks, key = looked_for(answer)
    assert (len(report.findings), report.complete) == (found, complete)
    assert looks == [key]


def test_an_effect_that_the_runs_input_does_not_describe_is_not_looked_for() -> None:
    """By its recorded digest another one was asked for: its look would tell of something else."""
    report, looks, _ = looked_for(Happened({"id": "in_3"}), note="by express", passes_note=True)
    assert len(report.findings) == 1 and looks == []


def test_an_effect_that_cannot_be_looked_for_hides_no_finding() -> None:
    assert not http.post("https://eu.adyen.test/v71/payments", provider="adyen").can_look
    assert http.post("https://api.test/a", look=http.find("GET /a", at="[0]")).can_look


def test_an_id_is_of_a_step() -> None:
    with App("memory://") as app:

        @app.flow(key="order:{order}")
        def sync(order: int) -> None: ...

        @app.reconcile(every="1d")
        def invoices(find: Any) -> Any:
            yield find.disagree(find.ledger(sync, id="{receipt[id]}"), find.source("books", [], key="{id}"))

        with pytest.raises(Misuse, match="name the step"):
            app.reconcile_now("invoices", dry_run=True)
