"""A place for claims that is a shop's database as well: a table of the user's beside the ledger."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from tests.acceptance.places import MariadbPlace, Place, PostgresPlace, SqlitePlace
from twiceproof.stores.mariadb.schema import connection_parameters

TABLE = {
    "sqlite": "CREATE TABLE stock (id INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    "postgres": "CREATE TABLE stock (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL)",
    "mariadb": "CREATE TABLE stock (id BIGINT AUTO_INCREMENT PRIMARY KEY, name TEXT NOT NULL) ENGINE=InnoDB",
}
STEPS = "SELECT {} FROM twiceproof_records WHERE kind = 'step' ORDER BY id"


class Shop:
    """What is in the database, seen from outside of the product."""

    def __init__(self, place: Place, store: str) -> None:
        self.place = place
        self.store = store
        place.app().close()
        self._run(TABLE[store])

    def _run(self, sql: str) -> list[Any]:
        if self.store == "sqlite":
            with closing(sqlite3.connect(self.place.directory / "claims.db")) as db, db:
                return db.execute(sql).fetchall()
        if self.store == "mariadb":
            parameters = connection_parameters(self.place.url)
            with closing(pymysql.connect(**parameters, autocommit=True)) as db, db.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        with psycopg.connect(self.place.url, options="-csearch_path=public,twiceproof") as db:
            cursor = db.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def stock(self) -> list[str]:
        return [name for (name,) in self._run("SELECT name FROM stock ORDER BY id")]

    def starts(self) -> list[int]:
        return [starts for (starts,) in self._run("SELECT starts FROM twiceproof_steps ORDER BY place")]

    def steps(self) -> list[tuple[str, str]]:
        key = "CONVERT(`key` USING utf8mb4), CONVERT(state USING utf8mb4)" if self.store == "mariadb" else "key, state"
        return [tuple(row) for row in self._run(STEPS.format(key))]


def make_shop(request: pytest.FixtureRequest, store: str, tmp_path: Path) -> Shop:
    if store == "sqlite":
        (tmp_path / "clock").write_text("0")
        return Shop(SqlitePlace("", tmp_path), store)
    if store == "mariadb":
        return Shop(MariadbPlace(request.getfixturevalue("mariadb_url"), tmp_path), store)
    return Shop(PostgresPlace(request.getfixturevalue("postgres_dsn"), tmp_path), store)
