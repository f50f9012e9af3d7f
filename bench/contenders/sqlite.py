"""SQLite as it is commonly used: WAL, synchronous=FULL, one INSERT per commit."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from twiceproof.stores.sqlite.engine import SqliteEngine

from ..callers import One, Threads
from ..rounds import Contender
from .row import COLUMNS, Rows

__all__ = ["RawSqlite"]

INSERT = f"INSERT INTO twiceproof_records ({COLUMNS}) VALUES ({','.join('?' * 13)}) ON CONFLICT DO NOTHING"
SELECT = f"SELECT {COLUMNS} FROM twiceproof_records WHERE space=? AND kind=? AND key=?"
BUSY_SECONDS = 60.0


class RawSqlite:
    """A file of its own with our table and indexes, and no code of ours between the loop and it."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        SqliteEngine(path).close()

    def sequential(self) -> Contender:
        return Contender("one INSERT per commit", One(self._inserting(self._open())))

    def concurrent(self) -> list[Contender]:
        return [self.connections(), self.locked()]

    def connections(self) -> Contender:
        """A connection per thread; whoever finds the file locked waits and tries again."""
        acts = [self._inserting(self._open()) for _ in range(64)]
        return Contender("one INSERT per commit, 64 connections", Threads(64, lambda caller: acts[caller](caller)))

    def locked(self) -> Contender:
        insert, lock = self._inserting(self._open()), threading.Lock()

        def act(caller: int) -> None:
            with lock:
                insert(caller)

        return Contender("one INSERT per commit, 1 connection and a lock", Threads(64, act))

    def limits(self) -> list[Contender]:
        db, rows = self._open(), _fresh_rows()

        def act(_: int) -> None:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(INSERT, rows.many(64))
            db.execute("COMMIT")

        return [Contender("64 rows per commit", One(act), rows=64)]

    def reading(self, count: int) -> Contender:
        db, rows = self._open(), _fresh_rows().many(count)
        db.execute("BEGIN IMMEDIATE")
        db.executemany(INSERT, rows)
        db.execute("COMMIT")
        turns = itertools.cycle([row[:3] for row in rows])
        return Contender("SELECT of one row", One(lambda _: db.execute(SELECT, next(turns)).fetchone()))

    def _inserting(self, db: sqlite3.Connection) -> Callable[[int], object]:
        rows = _fresh_rows()
        return lambda _: db.execute(INSERT, rows())

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA cache_size=-65536")
        self._stack.callback(db.close)
        return db


def _fresh_rows() -> Rows:
    return Rows(uuid.uuid4().hex[:8])
