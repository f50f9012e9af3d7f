"""Rows of a table in SQLite or PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ...errors import Misuse
from ...stores.open import refuse_driver

__all__ = ["MOST_ROWS", "LedgerTables", "PostgresTable", "SqliteTable", "TableWorld", "Tables", "refuse_many"]


MOST_ROWS = 10_000
Rows = Mapping[str, str]  # the row as text, by its position


class Tables(Protocol):
    """One table of one database. Connections are made per process: a forked process must not share its parent's."""

    def rows(self) -> Rows: ...

    def put_back(self) -> None:
        """Restore the table as it was when this was made, in one transaction."""

    def close(self) -> None: ...


class TableWorld:
    """`sqlite:///shop.db#orders` or `postgresql://…/shop#orders`. Rows that were there before are not counted."""

    def __init__(self, url: str, *, drawn: bool = True) -> None:
        self._url, _, self._name = url.partition("#")
        self._drawn = drawn
        if not self._name:
            raise Misuse("A table is named at the end of its database's URL: sqlite:///shop.db#orders")
        self._pid, self._table = os.getpid(), _open(self._url, self._name, drawn)
        self._mutex = threading.Lock()
        self._before = Counter(self._table.rows().values())

    def reset(self) -> None:
        if Counter(self._table.rows().values()) != self._before:
            self._table.put_back()

    def look(self) -> dict[str, int]:
        with self._mutex:  # a flow with threads observes from all of them
            now = Counter(self._mine().rows().values())
        there = {f"{self._name}: {row}": count for row, count in (now - self._before).items()}
        gone = {f"{self._name}, gone: {row}": count for row, count in (self._before - now).items()}
        return there | gone

    def close(self) -> None:
        self._table.close()

    def _mine(self) -> Tables:
        if self._pid != os.getpid():
            self._pid, self._table = os.getpid(), _open(self._url, self._name, self._drawn)
        return self._table


class LedgerTables:
    """Tables beside the ledger of a scenario, in the same database: a transaction writes them together with it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._tables: list[TableWorld] = []

    def open(self, url: str) -> None:
        """Look into this scenario's own database. Called in its process, before anything runs."""
        self._tables = [TableWorld(f"{url}#{name}", drawn=False) for name in self._names]

    def reset(self) -> None:
        """Each scenario has a copy of its own."""

    def look(self) -> dict[str, int]:
        return {what: count for table in self._tables for what, count in table.look().items()}


def refuse_many(name: str, count: int) -> None:
    if count > MOST_ROWS:
        raise Misuse(
            f"{name} has more than {MOST_ROWS:,} rows, and they are copied for each scenario; prove it against a "
            "database with a few."
        )


def _open(url: str, name: str, drawn: bool) -> Tables:
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        return SqliteTable(url, name)
    if scheme in ("postgresql", "postgres"):
        return PostgresTable(url, name, drawn=drawn)
    refuse_driver(url)
    raise Misuse("--table takes sqlite:///file.db#table or postgresql://…/database#table.")


# ruff: noqa: S608 - names are quoted, values are parameters


COLUMNS = """
SELECT attname, pg_get_serial_sequence(quote_ident(nspname) || '.' || quote_ident(relname), attname),
    attidentity <> '' OR coalesce(pg_get_expr(adbin, adrelid), '') LIKE 'nextval(%%'
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid JOIN pg_namespace ON pg_namespace.oid = relnamespace
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
REACHING = """
SELECT conrelid::regclass::text FROM pg_constraint
WHERE confrelid = %s AND contype = 'f' AND confdeltype IN ('c', 'n', 'd')
"""


class PostgresTable:
    """Rows are transferred by COPY, so that every type is restored exactly. Sequences are restored too.

    `drawn`: whether numbers from sequences count. A transaction that is rolled back does not give them back.
    """

    def __init__(self, url: str, name: str, *, drawn: bool = True) -> None:
        try:
            import psycopg
        except ImportError:
            raise Misuse(
                "--table postgresql://… needs psycopg, which is not installed; run: pip install 'twiceproof[postgres]'"
            ) from None
        try:
            db: Any = psycopg.connect(url, autocommit=True, connect_timeout=5)
        except psycopg.OperationalError:  # its text may contain parts of the URL
            raise Misuse("The table's database does not answer; check that it runs and the URL is right.") from None
        self._db: Any = db
        self._drawn = drawn
        try:
            self._read(name)
        except BaseException:
            self.close()
            raise

    def _read(self, name: str) -> None:
        self._table = self._found(name)
        self._refuse_reaching(name)
        refuse_many(name, self._db.execute(f"SELECT count(*) FROM {self._table}").fetchone()[0])
        self._columns, self._sequences = self._declared()
        self._kept = Counter(self._lines().values())

    def _found(self, name: str) -> str:
        row = self._db.execute("SELECT to_regclass(%s)::oid, to_regclass(%s)::text", (name, name)).fetchone()
        if row[0] is None:
            raise Misuse(f"There is no table {name!r} in this database; name one after the #.")
        self._oid = row[0]
        return str(row[1])

    def _refuse_reaching(self, name: str) -> None:
        """Refuse tables with cascading references: restoring rows must not change another table."""
        row = self._db.execute(REACHING, (self._oid,)).fetchone()
        if row is not None:
            raise Misuse(f"{row[0]} refers to {name}, and would follow when rows are removed; name {row[0]} instead.")

    def _declared(self) -> tuple[str, dict[str, tuple[int, bool]]]:
        found = self._db.execute(COLUMNS, (self._oid,)).fetchall()
        sequences = {name: self._sequence(name) for _, name, _ in found if name}
        names = [name for name, _, drawn in found if self._drawn or not drawn]
        return ", ".join('"' + name.replace('"', '""') + '"' for name in names), sequences

    def _sequence(self, name: str) -> tuple[int, bool]:
        last, called = self._db.execute(f"SELECT last_value, is_called FROM {name}").fetchone()
        return int(last), bool(called)

    def rows(self) -> Rows:
        return {place: line.replace("\t", " | ").replace("\\N", "NULL") for place, line in self._lines().items()}

    def _lines(self) -> dict[str, str]:
        found: dict[str, str] = {}
        query = f"COPY (SELECT ctid, {self._columns} FROM {self._table}) TO STDOUT"
        with self._db.cursor() as cursor, cursor.copy(query) as copy:
            text = b"".join(bytes(block) for block in copy).decode()
        for line in text.split("\n")[:-1]:  # not splitlines(): a row may contain other separators
            place, _, row = line.partition("\t")
            found[place] = row
        return found

    def close(self) -> None:
        self._db.close()

    def put_back(self) -> None:
        with self._db.transaction():
            self._db.execute("SET CONSTRAINTS ALL DEFERRED")
            missing, other = Counter(self._kept), []
            for place, line in self._lines().items():
                if missing[line] > 0:
                    missing[line] -= 1
                else:
                    other.append(place)
            self._db.execute(f"DELETE FROM {self._table} WHERE ctid = ANY(%s::tid[])", (other,))
            with self._db.cursor() as cursor, cursor.copy(f"COPY {self._table} ({self._columns}) FROM STDIN") as copy:
                copy.write("".join(f"{line}\n" for line in missing.elements()))
            for name, (last, called) in self._sequences.items():
                self._db.execute("SELECT setval(%s::regclass, %s, %s)", (name, last, called))


# ruff: noqa: S608 - names are quoted, values are parameters


REACHES_FURTHER = ("CASCADE", "SET NULL", "SET DEFAULT")


class SqliteTable:
    """Rows are known by their rowid, and restored under it."""

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
        """Without generated columns."""
        found = self._db.execute(f"PRAGMA table_xinfo({self._table})").fetchall()
        if not found:
            raise Misuse(f"There is no table {name!r} in this database; name one after the #.")
        try:
            self._db.execute(f"SELECT rowid FROM {self._table} LIMIT 0")
        except sqlite3.OperationalError:
            raise Misuse(f"{name} is WITHOUT ROWID, and cannot be put back row by row; look at another.") from None
        return ", ".join('"' + row[1].replace('"', '""') + '"' for row in found if row[6] == 0)

    def _refuse_reaching(self, name: str) -> None:
        """Refuse tables with cascading references: restoring rows must not change another table."""
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
