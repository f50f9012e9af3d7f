"""SQL effects in a flow: in the ledger's own database the row and the entry are committed together."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, NotDone
from twiceproof.effects import sql
from twiceproof.effects.base import Effect
from twiceproof.effects.sql import Row
from twiceproof.effects.sql_databases import connect, database_of

TABLE = (
    "CREATE TABLE customers (id INTEGER PRIMARY KEY, email VARCHAR(90) UNIQUE, phone VARCHAR(9) UNIQUE, by_key TEXT)"
)


SERVERS = [pytest.param(name, marks=pytest.mark.server) for name in ("postgres_dsn", "mariadb_url")]


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    url = f"sqlite:///{tmp_path / 'shop.db'}" if request.param == "sqlite" else request.getfixturevalue(request.param)
    App(url).close()
    with connect(url) as connection:
        connection.run(TABLE)
    yield url
    database_of(url).close_idle()


def customers(url: str) -> list[Any]:
    with connect(url) as connection:
        return [email for (email,) in connection.run("SELECT email FROM customers ORDER BY id").rows]


def buying(app: App, db: Any, **more: Any) -> Any:
    @app.effect
    def customer(number: int) -> Effect[Row]:
        values = {"id": number, **more}
        return sql.find_or_create(db, "customers", key={"email": f"{number}@example.com"}, values=values, mark="by_key")

    @app.flow(key="order:{number}")
    def buy(number: int) -> Row:
        return customer(number)

    return buy


def kinds(app: App, number: int) -> list[str]:
    (run,) = app.runs()
    return [step.repeat for step in app.history(run.run).steps]


def test_in_the_ledgers_own_database_the_step_is_a_transaction(url: str) -> None:
    with App(url) as app:
        row = buying(app, url)(1)
        assert row == Row(True, {"id": 1, "email": "1@example.com"})
        assert kinds(app, 1) == ["transaction"]
    assert customers(url) == ["1@example.com"]


def test_in_another_database_the_step_is_safe_to_repeat(url: str, tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        assert buying(app, url)(1).created
        assert kinds(app, 1) == ["safe"]
    assert customers(url) == ["1@example.com"]


def test_a_run_that_dies_at_the_commit_leaves_neither_row_nor_entry(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from twiceproof.stores.user_transaction import Join

    def fails(join: Join) -> Any:
        yield from join.rollback()
        raise KeyboardInterrupt

    with App(url) as app:
        buy = buying(app, url)
        with monkeypatch.context() as patched:
            patched.setattr(Join, "commit", fails)
            with pytest.raises(KeyboardInterrupt):
                buy(1)
        assert customers(url) == []
        assert buy(1).created


def test_another_unique_index_refuses_within_the_transaction_too(url: str) -> None:
    with App(url) as app:
        assert buying(app, url, phone="1")(1).created
    with App(url) as app, pytest.raises(NotDone, match="unique index"):
        buying(app, url, phone="1")(2)
    assert customers(url) == ["1@example.com"]


def test_the_mark_in_the_ledgers_database_is_the_steps_effect_key(url: str) -> None:
    with App(url) as app:
        buying(app, url)(1)
    with connect(url) as connection:
        ((mark,),) = connection.run("SELECT by_key FROM customers").rows
    assert mark.startswith("tp_")


def test_an_awaiting_flow_commits_row_and_entry_together(url: str) -> None:
    with App(url) as app:

        @app.flow(key="order:{number}")
        async def buy(number: int) -> Row:
            made: Row = await app.effects.sql.find_or_create(
                url, "customers", key={"email": "a"}, values={"id": number}
            )
            return made

        assert asyncio.run(buy(1)).created
        assert kinds(app, 1) == ["transaction"]
        assert customers(url) == ["a"]


def test_a_sqlalchemy_engine_on_the_ledgers_database_joins_it(url: str) -> None:
    from sqlalchemy import create_engine

    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:").replace("mariadb:", "mariadb+pymysql:"))
    with App(url) as app:
        assert buying(app, engine)(1).created
        assert kinds(app, 1) == ["transaction"]
    engine.dispose()
    assert customers(url) == ["1@example.com"]


@pytest.mark.server
def test_another_user_of_the_same_database_does_not_join_it(postgres_dsn: str) -> None:
    """Their rights differ: what one may write, the other may not even see."""
    App(postgres_dsn).close()
    with connect(postgres_dsn) as connection:
        connection.run(TABLE)
        connection.run("DROP ROLE IF EXISTS tp_clerk")
        connection.run("CREATE ROLE tp_clerk LOGIN")
        connection.run("GRANT ALL ON customers TO tp_clerk")
        connection.run("GRANT USAGE ON SCHEMA twiceproof TO tp_clerk")  # to see the ledger, not to write it
    try:
        with App(postgres_dsn) as app:
            assert buying(app, postgres_dsn.replace("postgres@", "tp_clerk@"))(1).created
            assert kinds(app, 1) == ["safe"]
    finally:
        with connect(postgres_dsn) as connection:
            connection.run("DROP OWNED BY tp_clerk")
            connection.run("DROP ROLE tp_clerk")
        database_of(postgres_dsn).close_idle()


def test_a_finished_step_is_replayed_without_its_database(tmp_path: Path) -> None:
    other = tmp_path / "crm.db"
    with closing(sqlite3.connect(other)) as db:
        db.execute(TABLE)
    with App(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        buy = buying(app, f"sqlite:///{other}")
        row = buy(1)
        database_of(f"sqlite:///{other}").close_idle()
        other.unlink()
        assert buy(1) == row
