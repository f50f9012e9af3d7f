"""Fills a store with finished claims, in bulk: the rows and indexes that a million calls would have left.

The indexes are in place all the while: built afterwards their pages would be full, and every later insert would
split one (on SQLite that doubled what a claim writes, in the large store only).
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, structs

from twiceproof.claims.claim import DONE, address_of, body_of
from twiceproof.claims.states import EXPIRE, Lifetime, claim_for
from twiceproof.records import Batch, Insert
from twiceproof.stores.open import open_store

from .contenders.row import COLUMNS
from .orders import RESULT, TENANT, Asks, Keys

__all__ = [
    "OPERATION",
    "Row",
    "fill_mariadb",
    "fill_postgres",
    "fill_sqlite",
    "fill_valkey",
    "insert_postgres",
    "insert_sqlite",
]

Row = tuple[Any, ...]

OPERATION = "ship"
KEEP = Lifetime().keep or 0.0
GROUP = 500
LINES = 2_000


def fill_sqlite(url: str, keys: Keys, count: int) -> None:
    insert_sqlite(url, _rows(keys, count), count)


def insert_sqlite(url: str, rows: Iterable[Row], counter: int = 0) -> None:
    """Rows as they are, in the order of the columns. `counter`: the highest number in them, if it is a new one."""
    db = sqlite3.connect(Path(url.removeprefix("sqlite:///")), isolation_level=None)
    db.execute("PRAGMA cache_size=-524288")
    db.execute("PRAGMA synchronous=OFF")
    db.execute("BEGIN IMMEDIATE")
    marks = ",".join("?" * 13)
    db.executemany(f"INSERT INTO twiceproof_records ({COLUMNS}) VALUES ({marks})", rows)
    db.execute("UPDATE twiceproof_counter SET number = max(number, ?)", (counter,))
    db.execute("COMMIT")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def fill_postgres(url: str, keys: Keys, count: int) -> None:
    insert_postgres(url, _rows(keys, count), count)


def insert_postgres(url: str, rows: Iterable[Row], counter: int = 0) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET synchronous_commit = off")
        with db.cursor().copy(f"COPY twiceproof.twiceproof_records ({COLUMNS}) FROM STDIN") as copy:
            for row in rows:
                copy.write(_line(row))
        if counter:
            at_least = "setval('twiceproof.twiceproof_number', greatest(last_value, %s))"
            db.execute(f"SELECT {at_least} FROM twiceproof.twiceproof_number", (counter,))
        db.execute("VACUUM ANALYZE twiceproof.twiceproof_records")
        db.execute("CHECKPOINT")


def fill_mariadb(url: str, keys: Keys, count: int) -> None:
    """In statements of many rows, each a transaction. Its counter follows the time, and is above these numbers."""
    import pymysql

    from twiceproof.stores.mariadb.schema import connection_parameters

    columns = COLUMNS.replace(", key,", ", `key`,")
    row = f"({','.join(['%s'] * 13)})"
    rows = _rows(keys, count)
    with pymysql.connect(**connection_parameters(url), autocommit=True) as db, db.cursor() as cursor:
        while part := list(itertools.islice(rows, LINES)):
            sql = f"INSERT INTO twiceproof_records ({columns}) VALUES {','.join([row] * len(part))}"
            cursor.execute(sql, [value for one in part for value in one])
        cursor.execute("ANALYZE TABLE twiceproof_records")


def fill_valkey(url: str, keys: Keys, count: int) -> None:
    """Through the engine, in large groups: its indexes cannot be built afterwards."""
    store = open_store(url)
    batches = (Batch((write,), f"fill-{number:x}") for number, write in enumerate(_inserts(keys, count)))
    while group := list(itertools.islice(batches, GROUP)):
        store.engine.commit(group)
    store.close()


def _rows(keys: Keys, count: int) -> Iterator[Row]:
    now, space_of, body_with = time.time(), _spaces(), _bodies()
    for number in range(1, count + 1):
        key = keys()
        yield (
            space_of(key),
            "claim",
            "self",
            DONE,
            number,
            number,
            f"0123456789abcdef-{number:x}",
            now,
            now,
            None,
            EXPIRE,
            now + KEEP,
            body_with(key),
        )


def _line(row: Row) -> str:
    """As COPY reads it. Backslashes are the only thing in these rows that needs escaping."""
    return "\t".join([r"\N" if value is None else str(value).replace("\\", r"\\") for value in row]) + "\n"


def _inserts(keys: Keys, count: int) -> Iterator[Insert]:
    body_with = _bodies()
    for _ in range(count):
        key = keys()
        at = address_of(TENANT, OPERATION, key)
        yield Insert(at, body_with(key), DONE, draw=True, queue=EXPIRE, due_in=KEEP)


def _spaces() -> Callable[[str], str]:
    prefix = f"{TENANT}/{OPERATION}/"
    return lambda key: prefix + key


def _bodies() -> Callable[[str], str]:
    """A finished claim's body, with one key put in place of another: a million are made."""
    mark = "shop:order:key"
    claim = claim_for(Asks(OPERATION, lambda: mark)(), 1)
    template = body_of(structs.replace(claim, result=Raw(msgspec.json.encode(RESULT))))
    return lambda key: template.replace(mark, key)
