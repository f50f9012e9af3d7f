"""The ledger in a user's SQLite transaction: the same file, the write lock had from the start."""

from __future__ import annotations

import contextlib
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...clock import Clock, jitter
from ...errors import Misuse
from ...operations import Operation, Sleep
from ...records import Batch, Outcome
from ..user_drivers import Driver, Sqlite3Driver
from ..user_transaction import TransactionEnded
from .connection import BUSY_PAUSE, held_for_too_long, is_busy, open_handle
from .rows import VersionCounter, land_counted

__all__ = ["SqliteJoins"]


# Also turns a transaction that was opened for reading into one that writes, or fails if it is too late for that.
TAKE_LOCK = "UPDATE twiceproof_counter SET number=number"
LEVELS = {"power": 2, "process": 1}


class SqliteJoins:
    dialect = "sqlite"

    def __init__(self, path: Path, clock: Clock, *, durability: str, patience: float) -> None:
        self._path = path
        self._clock = clock
        self._level = LEVELS[durability]
        self._patience = patience
        self._joined: weakref.WeakSet[Driver] = weakref.WeakSet()

    def connect(self, *, awaited: bool) -> sqlite3.Connection:
        return open_handle(self._path)

    def is_own(self, driver: Driver) -> Operation[bool]:
        yield from ()
        return self._is_ledger(self._file_of(driver.raw()))

    def under_way(self) -> bool:
        """Whether a transaction is open, also on a connection that we did not open."""
        for driver in list(self._joined):
            with contextlib.suppress(Exception):  # a driver's own: it was closed
                if driver.raw().in_transaction:
                    return True
        return False

    # -- opening ---------------------------------------------------------------------------------

    def lock(self, driver: Driver) -> Operation[None]:
        """In short steps that let an event loop go on: the one who holds the lock may be another of its tasks."""
        self._joined.add(driver)
        db = driver.raw()
        self._refuse_other_file(db)
        self._require_durability(db)
        deadline = self._clock.monotonic() + self._patience
        while not _has_lock(db):
            if self._clock.monotonic() >= deadline:
                raise held_for_too_long(self._patience)
            yield from Sleep(self._clock, jitter(BUSY_PAUSE))
        db.set_authorizer(_refuse_ends)

    def _file_of(self, db: sqlite3.Connection) -> str:
        with _plain_rows(db):
            return str(next(file for _, schema, file in db.execute("PRAGMA database_list") if schema == "main"))

    def _is_ledger(self, name: str) -> bool:
        return bool(name) and Path(name).exists() and Path(name).samefile(self._path)

    def _refuse_other_file(self, db: sqlite3.Connection) -> None:
        name = self._file_of(db)
        if not self._is_ledger(name):
            raise Misuse(
                f"The connection's file is {name or 'in memory'}, and the ledger's is {self._path}; effect and ledger "
                'entry commit together only in one file. Use that file, or @app.step(repeat="keyed") or check(…).'
            )

    def _require_durability(self, db: sqlite3.Connection) -> None:
        """The ledger's entry must be as durable in this transaction as in one of our own."""
        with _plain_rows(db):
            if not db.in_transaction:
                db.execute(f"PRAGMA synchronous={max(self._level, _level(db))}")
            if _level(db) < self._level:
                raise Misuse("The connection would lose its last commits in a power cut; set PRAGMA synchronous=FULL.")

    def check(self, driver: Driver, mark: str) -> Operation[str]:
        self._joined.add(driver)
        db = driver.raw()
        self._refuse_other_file(db)
        with _plain_rows(db):
            self._take_lock(db)
            db.execute(f'SAVEPOINT "{mark}"')
        yield from ()
        return ""

    def check_for_inserts(self, driver: Driver, mark: str, *, ordered: bool) -> Operation[None]:
        if not isinstance(driver, Sqlite3Driver):  # that one may open its transaction only now
            yield from driver.adopt()
        self._joined.add(driver)
        db = driver.raw()
        self._refuse_other_file(db)
        with _plain_rows(db):
            if not db.in_transaction:
                _begin_as_the_driver_would(db)
            self._take_lock(db)
            db.execute(f'SAVEPOINT "{mark}"')
        yield from ()

    def insert_each(
        self, driver: Driver, mark: str, batches: Sequence[Batch], *, first: bool
    ) -> Operation[Sequence[Outcome]]:
        if first:
            yield from self.check_for_inserts(driver, mark, ordered=False)
        db = driver.raw()
        with _plain_rows(db):
            landed = land_counted(db, batches, VersionCounter(), self._clock.now())
        yield from ()
        return landed

    def _take_lock(self, db: sqlite3.Connection) -> None:
        try:
            db.execute(TAKE_LOCK)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            raise Misuse("The transaction was opened for reading only; open it with BEGIN IMMEDIATE.") from error

    # -- writing and ending ----------------------------------------------------------------------

    def land(self, driver: Driver, mark: str, batch: Batch) -> Operation[Outcome]:
        db = driver.raw()
        with _plain_rows(db):
            try:
                db.execute(f'RELEASE "{mark}"')
            except sqlite3.OperationalError as error:
                raise TransactionEnded from error  # savepoints go with their transaction
            db.execute(f'SAVEPOINT "{mark}"')
            (outcome,) = land_counted(db, [batch], VersionCounter(), self._clock.now())
        yield from ()
        return outcome

    def allow_end(self, driver: Driver) -> None:
        driver.raw().set_authorizer(None)

    def prove(self, landed: Sequence[Batch]) -> None:
        """What a COMMIT has acknowledged is there."""

    def end(self, session: str) -> None:
        """There is no server."""

    def explain(self, error: BaseException) -> BaseException:
        if isinstance(error, sqlite3.DatabaseError) and str(error) == "not authorized":
            return Misuse(
                "The transaction of a function under @app.transaction is committed with its ledger entry, when it "
                "returns; leave out commit(), rollback(), executescript() and `with connection:`."
            )
        return error


def _has_lock(db: sqlite3.Connection) -> bool:
    """Without SQLite's own patience, which would hold up a whole event loop."""
    with _plain_rows(db):
        patience = db.execute("PRAGMA busy_timeout").fetchone()[0]
        db.execute("PRAGMA busy_timeout=0")
        try:
            db.execute(TAKE_LOCK if db.in_transaction else "BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return False
        finally:
            db.execute(f"PRAGMA busy_timeout={int(patience)}")
        return True


def _begin_as_the_driver_would(db: sqlite3.Connection) -> None:
    """Python's default mode opens a transaction before the first change: these inserts are one."""
    if db.isolation_level is None:
        raise Misuse("The connection is in no transaction; run BEGIN IMMEDIATE on it first.")
    db.execute("BEGIN IMMEDIATE")


def _level(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA synchronous").fetchone()[0])


def _refuse_ends(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


@contextlib.contextmanager
def _plain_rows(db: Any) -> Iterator[None]:
    """The user's connection may make anything of rows and texts."""
    kept = db.row_factory, db.text_factory
    db.row_factory, db.text_factory = None, str
    try:
        yield
    finally:
        db.row_factory, db.text_factory = kept
