"""Databases are asked whether the tables of a file have the unique indexes that its rows need."""

from __future__ import annotations

import socket
import sqlite3
from pathlib import Path

import pytest

from twiceproof.declared import gate
from twiceproof.declared.connections import Connection, Connections
from twiceproof.declared.gate import GateCheck, check_file
from twiceproof.declared.nodes import Place
from twiceproof.declared.reading import read_flow
from twiceproof.declared.tables import index_problems

FLOW = """\
flow: note
input: {sku: text}
key: k:{sku}
uses: [shop]
steps:
  - step: row
    sql: shop
    upsert: {table: stock, by: [sku], row: {sku: =sku, pieces: 1}}
tests: [{name: one, input: {sku: a}}]
"""


def shop(folder: Path, table: str) -> dict[str, Connection]:
    with sqlite3.connect(folder / "shop.db") as db:
        db.execute(table)
    return {"shop": Connection(sql=f"sqlite:///{folder}/shop.db")}


def test_a_table_with_the_index_is_fine_and_one_without_it_is_told_at_its_place(tmp_path):
    (tmp_path / "a").mkdir()
    good = shop(tmp_path / "a", "CREATE TABLE stock (sku TEXT PRIMARY KEY, pieces INTEGER)")
    assert index_problems(read_flow(FLOW), good) == []
    bad = shop(tmp_path, "CREATE TABLE stock (sku TEXT, pieces INTEGER)")
    (problem,) = index_problems(read_flow(FLOW), bad)
    assert (problem.rule, problem.place, problem.level) == ("unique-index", Place(8, 28), "error")
    assert "no unique index on exactly (sku)" in problem.found and problem.instead.startswith("CREATE UNIQUE INDEX")
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute(problem.instead)


def test_the_index_that_is_suggested_is_enough(tmp_path):
    side = shop(tmp_path, "CREATE TABLE stock (sku TEXT, pieces INTEGER)")
    (problem,) = index_problems(read_flow(FLOW), side)
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute(problem.instead)
    assert index_problems(read_flow(FLOW), {"shop": Connection(sql=f"sqlite:////{tmp_path}/shop.db")}) == []


@pytest.mark.parametrize(
    ("table", "said"),
    [("CREATE TABLE other (x)", "no table stock"), ("CREATE TABLE stock (sku TEXT PRIMARY KEY)", "no column pieces")],
)
def test_a_table_or_a_column_that_is_missing_is_told(tmp_path, table, said):
    (problem,) = index_problems(read_flow(FLOW), shop(tmp_path, table))
    assert said in problem.found


def test_a_database_that_cannot_be_asked_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.delenv("SHOP_DB", raising=False)
    for reference in ("env:SHOP_DB", f"file:{tmp_path}/no-secret", f"sqlite:///{tmp_path}/nothing.db"):
        (problem,) = index_problems(read_flow(FLOW), {"shop": Connection(sql=reference)})
        assert problem.level == "warning" and "shop cannot be asked" in problem.found
    assert index_problems(read_flow(FLOW), {}) == []


def test_a_promotion_asks_for_the_key_and_the_address_of_a_machine(tmp_path, monkeypatch):
    text = FLOW.replace("uses: [shop]", "uses: [builder]").replace(
        "    sql: shop\n    upsert: {table: stock, by: [sku], row: {sku: =sku, pieces: 1}}\n",
        "    remote: ssh builder\n    command: run\n    callback: done\n    timeout: 1h\n",
    )
    side = Connection(ssh="127.0.0.1", key=f"file:{tmp_path}/key")

    def found() -> list[str]:
        return [one.found for one in check_file(read_flow(text), Connections({"builder": side})) if not one.ok]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(gate, "SSH_PORT", listening.getsockname()[1])
        assert "key cannot be read" in found()[0]
        (tmp_path / "key").write_text("a key")
        assert found() == []
    assert "does not answer" in found()[0]


def refused(known: dict[str, Connection]) -> list[GateCheck]:
    return [one for one in check_file(read_flow(FLOW), Connections(known)) if not one.ok]


def test_a_promotion_asks_the_live_side(tmp_path):
    (found,) = refused(shop(tmp_path, "CREATE TABLE stock (sku TEXT, pieces INTEGER)"))
    assert found.name == "table" and found.instead.startswith("CREATE UNIQUE INDEX")
    (tmp_path / "a").mkdir()
    assert refused(shop(tmp_path / "a", "CREATE TABLE stock (sku TEXT PRIMARY KEY, pieces INTEGER)")) == []
    (found,) = refused({"shop": Connection(sql=f"sqlite:///{tmp_path}/nothing.db")})
    assert found.name == "connection" and "could not be reached" in found.found
