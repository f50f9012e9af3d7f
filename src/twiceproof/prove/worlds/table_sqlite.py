"""A table in a SQLite file."""

# ruff: noqa: S608 - names are quoted, values are parameters

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ...errors import Misuse
from .table import Rows, refuse_many

__all__ = ["SqliteTable"]

REACHES_FURTHER = ("CASCADE", "SET NULL", "SET DEFAULT")


class SqliteTable:
    """Rows are known by their rowid, and put back under it."""

    def __init__(self, url: str, name: str) -> None:
        path = Path(unquote(urlsplit(url).path[1:]))
        if not path.is_file():
            raise Misuse(f"There is no file {path}; --table takes sqlite:///file.db#table.")
        self._db = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
        self._name = name
        self._table = '"' + name.replace('"', '""') + '"'
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        self._columns = self._declared(self._name)
        self._refuse_reaching(self._name)
        (count,) = self._db.execute(f"SELECT count(*) FROM {self._table}").fetchone()
        refuse_many(self._name, count)
        self._kept = self._all()
        self._last = self._sequence(self._name)

    def _declared(self, name: str) -> str:
        """Without columns that the database works out itself."""
        found = self._db.execute(f"PRAGMA table_xinfo({self._table})").fetchall()
        if not found:
            raise Misuse(f"There is no table {name!r} in this database; name one after the #.")
        try:
            self._db.execute(f"SELECT rowid FROM {self._table} LIMIT 0")
        except sqlite3.OperationalError:
            raise Misuse(f"{name} is WITHOUT ROWID, and cannot be put back row by row; look at another.") from None
        return ", ".join('"' + row[1].replace('"', '""') + '"' for row in found if row[6] == 0)

    def _refuse_reaching(self, name: str) -> None:
        """Putting rows back must not change a table that nobody named."""
        for (other,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for key in self._db.execute("SELECT * FROM pragma_foreign_key_list(?)", (other,)).fetchall():
                if key[2].lower() == name.lower() and key[6] in REACHES_FURTHER:
                    raise Misuse(f"{other} refers to {name} with ON DELETE {key[6]}; name {other} instead.")

    def rows(self) -> Rows:
        return {str(row[0]): " | ".join(_text(value) for value in row[1:]) for row in self._all()}

    def _all(self) -> list[tuple[Any, ...]]:
        return self._db.execute(f"SELECT rowid, {self._columns} FROM {self._table}").fetchall()

    def _sequence(self, name: str) -> int | None:
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone():
            return None
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        self._db.close()

    def put_back(self) -> None:
        kept, now = {row[0]: row for row in self._kept}, {row[0]: row for row in self._all()}
        other = [number for number, row in now.items() if kept.get(number) != row]
        again = [row for number, row in kept.items() if now.get(number) != row]
        marks = ", ".join("?" * (self._columns.count('", "') + 2))
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(f"DELETE FROM {self._table} WHERE rowid = ?", [(number,) for number in other])
            self._db.executemany(f"INSERT INTO {self._table} (rowid, {self._columns}) VALUES ({marks})", again)
            if self._last is not None:
                self._db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (self._last, self._name))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "NULL" if value is None else str(value)
