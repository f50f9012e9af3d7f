"""PostgreSQL as it is commonly used: psycopg, one INSERT … ON CONFLICT DO NOTHING per commit."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg

from twiceproof import App

from ..callers import One, Tasks, Threads
from ..rounds import Contender
from .row import COLUMNS, Rows

__all__ = ["RawPostgres"]

CONNECTIONS = 32
MARK = chr(31)
INSERT = (
    f"INSERT INTO twiceproof.twiceproof_records ({COLUMNS}) VALUES ({','.join(['%s'] * 13)}) ON CONFLICT DO NOTHING"
)
# Texts joined by a mark: psycopg takes five times as long to write them as arrays.
INSERT_MANY = f"""
    INSERT INTO twiceproof.twiceproof_records ({COLUMNS})
    SELECT space, %s, %s, %s, number, number, nonce, %s, %s, %s, %s, NULL, body
    FROM unnest(string_to_array(%s, chr(31)), %s::bigint[], string_to_array(%s, chr(31)), string_to_array(%s, chr(31)))
        AS rows(space, number, nonce, body)
    ON CONFLICT DO NOTHING
"""
SELECT = f"SELECT {COLUMNS} FROM twiceproof.twiceproof_records WHERE space=%s AND kind=%s AND key=%s"


class RawPostgres:
    """A database of its own with our table and indexes, and no code of ours between the loop and it."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        self._dsn = dsn
        self._stack = stack
        App(dsn).close()

    def sequential(self) -> Contender:
        return Contender("one INSERT per commit", One(self._inserting(self._open())))

    def concurrent(self) -> list[Contender]:
        return [self.threads(), self.tasks()]

    def threads(self) -> Contender:
        acts = [self._inserting(self._open()) for _ in range(CONNECTIONS)]
        callers = Threads(CONNECTIONS, lambda caller: acts[caller](caller))
        return Contender(f"one INSERT per commit, {CONNECTIONS} connections", callers)

    def tasks(self) -> Contender:
        """The same connections in one event loop."""
        runner = asyncio.Runner()
        links = [runner.run(self._open_async()) for _ in range(CONNECTIONS)]
        rows = _fresh_rows()

        async def act(caller: int) -> None:
            await links[caller].execute(INSERT, rows(), prepare=True)

        for link in links:
            self._stack.callback(link.pgconn.finish)
        return Contender(f"one INSERT per commit, {CONNECTIONS} connections", Tasks(CONNECTIONS, act, runner))

    def limits(self) -> list[Contender]:
        return [self.unnest(), self.executemany()]

    def unnest(self) -> Contender:
        db, rows = self._open(), _fresh_rows()
        return Contender("64 rows per commit, unnest", One(lambda _: _insert_many(db, rows.many(64))), rows=64)

    def executemany(self) -> Contender:
        """One INSERT per row, in psycopg's pipeline, in one transaction."""
        db, rows = self._open(), _fresh_rows()

        def act(_: int) -> None:
            with db.transaction(), db.cursor() as cursor:
                cursor.executemany(INSERT, rows.many(64))

        return Contender("64 rows per commit, executemany", One(act), rows=64)

    def reading(self, count: int) -> Contender:
        db, rows = self._open(), _fresh_rows().many(count)
        _insert_many(db, rows)
        turns = itertools.cycle([row[:3] for row in rows])
        return Contender("SELECT of one row", One(lambda _: db.execute(SELECT, next(turns), prepare=True).fetchone()))

    def _inserting(self, db: psycopg.Connection[Any]) -> Callable[[int], object]:
        rows = _fresh_rows()
        return lambda _: db.execute(INSERT, rows(), prepare=True)

    def _open(self) -> psycopg.Connection[Any]:
        db = psycopg.connect(self._dsn, autocommit=True)
        self._stack.callback(db.close)
        return db

    async def _open_async(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)


def _insert_many(db: psycopg.Connection[Any], rows: list[tuple[Any, ...]]) -> None:
    """The columns that differ from row to row, and the others once."""
    spaces, kinds, keys, states, numbers, _, nonces, created, updated, leases, queues, _, bodies = zip(
        *rows, strict=True
    )
    joined = [MARK.join(column) for column in (spaces, nonces, bodies)]
    same = [column[0] for column in (kinds, keys, states, created, updated, leases, queues)]
    array = "{" + ",".join(map(str, numbers)) + "}"
    db.execute(INSERT_MANY, [*same, joined[0], array, *joined[1:]], prepare=True)


def _fresh_rows() -> Rows:
    return Rows(uuid.uuid4().hex[:8])
