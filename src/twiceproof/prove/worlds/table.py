"""Rows of a table: what a play has added, changed or removed, and all of it put back before the next."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from ...errors import Misuse
from ...stores.open import refuse_driver

__all__ = ["MOST_ROWS", "TableWorld", "Tables", "refuse_many"]

MOST_ROWS = 10_000
Rows = Mapping[str, str]  # the row as text, by where it lies


class Tables(Protocol):
    """One table of one database. Connections are made per process: a forked one must not share its parent's."""

    def rows(self) -> Rows: ...

    def put_back(self) -> None:
        """As it was when this was made, in one transaction."""

    def close(self) -> None: ...


class TableWorld:
    """`sqlite:///shop.db#orders` or `postgresql://…/shop#orders`. What was there before counts as nothing."""

    def __init__(self, url: str) -> None:
        self._url, _, self._name = url.partition("#")
        if not self._name:
            raise Misuse("A table is named at the end of its database's URL: sqlite:///shop.db#orders")
        self._pid, self._table = os.getpid(), _open(self._url, self._name)
        self._mutex = threading.Lock()
        self._before = Counter(self._table.rows().values())

    def reset(self) -> None:
        if Counter(self._table.rows().values()) != self._before:
            self._table.put_back()

    def look(self) -> dict[str, int]:
        with self._mutex:  # a flow with threads looks from all of them
            now = Counter(self._mine().rows().values())
        there = {f"{self._name}: {row}": count for row, count in (now - self._before).items()}
        gone = {f"{self._name}, gone: {row}": count for row, count in (self._before - now).items()}
        return there | gone

    def close(self) -> None:
        self._table.close()

    def _mine(self) -> Tables:
        if self._pid != os.getpid():
            self._pid, self._table = os.getpid(), _open(self._url, self._name)
        return self._table


def refuse_many(name: str, count: int) -> None:
    if count > MOST_ROWS:
        raise Misuse(
            f"{name} has more than {MOST_ROWS:,} rows, and they are copied for each play; prove it against a database "
            "with a few."
        )


def _open(url: str, name: str) -> Tables:
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from .table_sqlite import SqliteTable

        return SqliteTable(url, name)
    if scheme in ("postgresql", "postgres"):
        from .table_postgres import PostgresTable

        return PostgresTable(url, name)
    refuse_driver(url)
    raise Misuse("--table takes sqlite:///file.db#table or postgresql://…/database#table.")
