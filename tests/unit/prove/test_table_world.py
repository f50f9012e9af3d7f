"""Rows of a table: what a scenario does to them is seen, and put back as it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App
from twiceproof.errors import Misuse
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.worlds.table import MOST_ROWS, TableWorld


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, twice AS (name || name))")
    db.execute("INSERT INTO orders (name) VALUES ('Ada'), (NULL)")
    yield db
    db.close()


def test_what_was_added_changed_and_removed_is_seen_and_put_back(shop: sqlite3.Connection, tmp_path: Path) -> None:
    before = shop.execute("SELECT * FROM orders").fetchall()
    with closing(TableWorld(f"sqlite:///{tmp_path}/shop.db#orders")) as world:
        _change_and_put_back(shop, world)
    assert shop.execute("SELECT * FROM orders WHERE id < 3").fetchall() == before


def _change_and_put_back(shop: sqlite3.Connection, world: TableWorld) -> None:
    assert world.look() == {}
    shop.execute("INSERT INTO orders (name) VALUES ('Bob')")
    shop.execute("UPDATE orders SET name = 'Eve' WHERE id = 1")
    shop.execute("DELETE FROM orders WHERE id = 2")
    assert world.look() == {
        "orders: 3 | Bob": 1,
        "orders: 1 | Eve": 1,
        "orders, gone: 1 | Ada": 1,
        "orders, gone: 2 | NULL": 1,
    }
    world.reset()
    assert world.look() == {}
    shop.execute("INSERT INTO orders (name) VALUES ('Bob')")
    assert list(world.look()) == ["orders: 3 | Bob"]  # numbers are given out anew


@pytest.mark.parametrize(
    ("statement", "name", "says"),
    [
        ("SELECT 1", "", "at the end of its database's URL"),
        ("SELECT 1", "#nothing", "no table 'nothing'"),
        ("CREATE TABLE k (id TEXT PRIMARY KEY) WITHOUT ROWID", "#k", "WITHOUT ROWID"),
        ("CREATE TABLE lines (o REFERENCES orders ON DELETE CASCADE)", "#orders", "name lines instead"),
        (
            f"INSERT INTO orders (name) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
            f"WHERE i < {MOST_ROWS}) SELECT i FROM n",
            "#orders",
            "more than 10,000 rows",
        ),
    ],
)
def test_a_table_that_cannot_be_put_back_is_refused(
    shop: sqlite3.Connection, tmp_path: Path, statement: str, name: str, says: str
) -> None:
    shop.execute(statement)
    with pytest.raises(Misuse, match=says):
        TableWorld(f"sqlite:///{tmp_path}/shop.db{name}")


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="There is no file"):
        TableWorld(f"sqlite:///{tmp_path}/none.db#orders")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.server
def test_a_postgresql_table_is_put_back_with_its_types_and_sequences(postgres_dsn: str) -> None:
    import psycopg

    with psycopg.connect(postgres_dsn, autocommit=True) as db, ExitStack() as stack:
        db.execute(
            "CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, about jsonb, note text, "
            "twice int GENERATED ALWAYS AS (2) STORED)"
        )
        db.execute("INSERT INTO orders (about, note) VALUES ('{\"a\": [1]}', E'tab\\tline\\n\u2028'), (NULL, '')")
        before = db.execute("SELECT * FROM orders ORDER BY id").fetchall()
        world = stack.enter_context(closing(TableWorld(f"{postgres_dsn}#orders")))
        db.execute("INSERT INTO orders (note) VALUES ('new')")
        db.execute("UPDATE orders SET note = 'changed' WHERE id = 1")
        db.execute("DELETE FROM orders WHERE id = 2")
        assert set(world.look()) >= {"orders: 3 | NULL | new", "orders, gone: 2 | NULL | "}
        world.reset()
        assert db.execute("SELECT * FROM orders ORDER BY id").fetchall() == before
        db.execute("INSERT INTO orders (note) VALUES ('new')")
        assert list(world.look()) == ["orders: 3 | NULL | new"]
        db.execute("CREATE TABLE lines (o int REFERENCES orders ON DELETE CASCADE)")
        with pytest.raises(Misuse, match="name lines instead"):
            TableWorld(f"{postgres_dsn}#orders")


app = App("memory://")


@app.step(repeat="safe")
def insert(path: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO orders (name) VALUES ('Bob')")
    db.close()


@app.step(repeat="safe")
def upsert(path: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO orders VALUES (17, 'Bob') ON CONFLICT (id) DO NOTHING")
    db.close()


@app.flow(key="insert")
def inserting(order: dict[str, Any]) -> None:
    insert(order["path"])


@app.flow(key="upsert")
def upserting(order: dict[str, Any]) -> None:
    upsert(order["path"])


@pytest.mark.slow
def test_an_insert_that_is_repeated_is_found_and_an_upsert_is_safe(shop: sqlite3.Connection, tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    with closing(TableWorld(f"sqlite:///{path}#orders")) as world:
        with pytest.raises(NotSafe):
            prove(inserting, {"path": path}, world=world, depth=1)
        assert prove(upserting, {"path": path}, world=world, depth=1).expected == {"orders: 17 | Bob": 1}
    assert shop.execute("SELECT count(*) FROM orders").fetchone() == (2,)
