"""Transactional steps, proved: each scenario has its ledger and a copy of the tables in one private database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, Misuse
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.target import app_of
from twiceproof.stores.sqlite.connection import open_handle

BILLS = "CREATE TABLE bills (number integer PRIMARY KEY, customer text NOT NULL)"
OLD = (1, "an old bill")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/shop.db") as made:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
            db.execute(BILLS)
            db.execute("CREATE INDEX of_customer ON bills (customer)")
            db.execute("INSERT INTO bills VALUES (?, ?)", OLD)
            db.commit()
        yield made


def billing(app: App, outside: list[str] | None = None) -> Any:
    """A flow whose first step bills in the ledger's transaction."""

    @app.transaction
    def bill(connection: Any, customer: str) -> str:
        connection.execute("INSERT INTO bills (customer) VALUES (?)", (customer,))
        return customer

    @app.step(repeat="never")
    def mail(customer: str) -> None:
        if outside is not None:
            outside.append(f"mail {customer}")

    @app.flow(key="bill:{customer}")
    def order(customer: str) -> str:
        bill(customer)
        if outside is not None:
            mail(customer)
        return customer

    return order


def rows(folder: Path) -> list[Any]:
    with closing(sqlite3.connect(folder / "shop.db")) as db:
        return db.execute("SELECT number, customer FROM bills").fetchall()


def test_a_transactional_step_is_proved_and_the_real_tables_are_not_touched(app, tmp_path):
    report = prove(billing(app), "ada", ledger_tables=["bills"], depth=1)
    assert report.good and report.complete and report.unobserved == ()
    assert report.expected == {"bills: 2 | ada": 1}
    played = {one.scenario for one in report.verdicts}
    assert {"kill-write-2-before", "kill-write-2-after", "kill-effect-1-before", "kill-effect-1-after"} <= played
    assert {"lost-1", "paused-1"} <= played
    assert rows(tmp_path) == [OLD] and app.runs() == []


def test_it_is_proved_beside_other_effects(app):
    sent: list[str] = []
    report = prove(billing(app, sent), "ada", world=lambda: list(sent), ledger_tables=["bills"], depth=1)
    assert report.good and report.expected == {"mail ada": 1, "bills: 2 | ada": 1}


def test_a_row_that_is_written_outside_of_the_transaction_is_found(app):
    @app.step(repeat="safe")
    def again(customer: str) -> None:
        with closing(open_handle(Path(app.store.joins._inner._path))) as db:
            db.execute("INSERT INTO bills (customer) VALUES (?)", (customer,))
            db.commit()

    @app.flow(key="bill:{customer}")
    def order(customer: str) -> None:
        again(customer)

    with pytest.raises(NotSafe) as found:
        prove(order, "ada", ledger_tables=["bills"], depth=1)
    assert any(one.word == "twice" for one in found.value.report.bad)


def test_real_processes_are_killed_around_the_commit_too(app):
    report = prove(billing(app), "ada", ledger_tables=["bills"], depth=1, processes=True, time="60s")
    assert report.good and report.complete


def test_a_table_that_is_not_there_is_said(app):
    with pytest.raises(Misuse, match="There is no table 'bils'"):
        prove(billing(app), "ada", ledger_tables=["bils"])
    with pytest.raises(Misuse, match="needs a ledger in a SQL database"):
        prove(billing(app), "ada", ledger_tables=["bills"], store="memory://")


@pytest.mark.server
def test_on_postgresql_each_scenario_has_a_schema_with_both(postgres_dsn):
    psycopg = pytest.importorskip("psycopg")
    with App(postgres_dsn) as app, psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("CREATE TABLE bills (number integer GENERATED ALWAYS AS IDENTITY, customer text NOT NULL)")

        @app.transaction
        def bill(connection: Any, customer: str) -> str:
            connection.execute("INSERT INTO bills (customer) VALUES (%s)", (customer,))
            return customer

        @app.flow(key="bill:{customer}")
        def order(customer: str) -> str:
            return bill(customer)

        report = prove(order, "ada", ledger_tables=["bills"], store=postgres_dsn, depth=1)
        assert report.good and report.complete and report.expected == {"bills: ada": 1}
        assert db.execute("SELECT count(*) FROM bills").fetchone() == (0,)


def test_an_app_that_a_function_makes_is_known_to_its_flow(tmp_path):
    def made() -> Any:
        shop = App(f"sqlite:///{tmp_path}/made.db")

        @shop.flow(key="bill:{customer}")
        def order(customer: str) -> str:
            return customer

        return order

    order = made()
    app = app_of(order.flow)
    assert app.flows["order"] is order.flow
    app.close()
