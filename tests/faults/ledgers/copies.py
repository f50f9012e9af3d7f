"""Copies of a store's contents that can be kept in a repository: a file, a script, a list of commands."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import redis

from tests.acceptance.places import Place
from twiceproof.stores.base import migrations
from twiceproof.stores.postgres.schema import migration_sql

__all__ = ["FILES", "load", "save"]

FILES = {"sqlite": "sqlite.ledger", "postgres": "postgres.sql", "valkey": "valkey.jsonl"}
TABLES = ("twiceproof_migrations", "twiceproof_facts", "twiceproof_records")


def save(store: str, place: Place, folder: Path) -> None:
    SAVERS[store](place, folder / FILES[store])


def load(store: str, folder: Path, place: Place) -> None:
    """Into an empty place."""
    LOADERS[store](folder / FILES[store], place)


# -- SQLite: the file itself ---------------------------------------------------------------------


def save_sqlite(place: Place, path: Path) -> None:
    with closing(sqlite3.connect(place.directory / "claims.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copyfile(place.directory / "claims.db", path)


def load_sqlite(path: Path, place: Place) -> None:
    shutil.copyfile(path, place.directory / "claims.db")


# -- PostgreSQL: the release's own schema, and the rows ------------------------------------------


def save_postgres(place: Place, path: Path) -> None:
    with psycopg.connect(place.url) as db, path.open("w") as script:
        script.write("CREATE SCHEMA twiceproof;\n")
        script.write("CREATE TABLE twiceproof.twiceproof_migrations (number int PRIMARY KEY, name text NOT NULL);\n")
        for migration in migrations("postgres"):
            script.write(migration_sql(migration).decode() + "\n")
        for table in TABLES:
            script.writelines(rows(db, table))
        for name, last in db.execute("SELECT sequencename, last_value FROM pg_sequences WHERE last_value IS NOT NULL"):
            script.write(f"SELECT setval('twiceproof.{name}', {last});\n")


def rows(db: psycopg.Connection, table: str) -> Iterator[str]:
    table = f"twiceproof.{table}"
    yield f"DELETE FROM {table};\n"
    for (row,) in db.execute(f"SELECT row_to_json(t)::text FROM {table} t ORDER BY 1").fetchall():  # type: ignore[arg-type]
        quoted = row.replace("'", "''")
        values = f"SELECT * FROM json_populate_record(NULL::{table}, '{quoted}')"
        yield f"INSERT INTO {table} OVERRIDING SYSTEM VALUE {values};\n"


def load_postgres(path: Path, place: Place) -> None:
    with psycopg.connect(place.url, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS twiceproof CASCADE")
        db.execute(path.read_bytes())


# -- Valkey: commands ----------------------------------------------------------------------------


def save_valkey(place: Place, path: Path) -> None:
    with closing(redis.Redis.from_url(place.url)) as server, path.open("w") as script:
        for key in sorted(server.scan_iter(count=1_000)):
            if not key.endswith(b":shift"):
                script.write(json.dumps([text(word) for word in command(server, key)]) + "\n")


def command(server: Any, key: bytes) -> list[Any]:
    kind = server.type(key)
    if kind == b"string":
        return ["SET", key, server.get(key)]
    if kind == b"hash":
        return ["HSET", key, *(word for pair in sorted(server.hgetall(key).items()) for word in pair)]
    if kind == b"zset":
        return [
            "ZADD",
            key,
            *(word for name, score in server.zrange(key, 0, -1, withscores=True) for word in (repr(score), name)),
        ]
    if kind == b"set":
        return ["SADD", key, *sorted(server.smembers(key))]
    raise ValueError(f"{key!r} is a {kind!r}: say how it is kept")


def text(word: Any) -> str:
    """Bytes as the code points of the same numbers."""
    return word.decode("latin-1") if isinstance(word, bytes) else str(word)


def load_valkey(path: Path, place: Place) -> None:
    with closing(redis.Redis.from_url(place.url)) as server, path.open() as script:
        server.flushall()
        for line in script:
            server.execute_command(*(word.encode("latin-1") for word in json.loads(line)))


SAVERS = {"sqlite": save_sqlite, "postgres": save_postgres, "valkey": save_valkey}
LOADERS = {"sqlite": load_sqlite, "postgres": load_postgres, "valkey": load_valkey}
