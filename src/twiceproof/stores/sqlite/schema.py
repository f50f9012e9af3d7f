"""The ledger's file in SQLite: checks that it is one, creates it privately, and brings its schema up to date."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

from ...clock import Clock
from ...errors import SchemaMismatch, StoreError
from ..base import POINT, NoLedger, migrations, refuse_locked
from .connection import begin_immediate, patiently

__all__ = ["create_private", "migrate", "require_ledger"]


def require_ledger(path: Path) -> None:
    """A mistyped path would otherwise become a new, empty ledger, and the answer “no claims” a wrong one."""
    if not path.exists():
        raise NoLedger(f"There is no ledger at {path}; {POINT}.")
    if path.is_file() and not _is_ledger(path):
        raise NoLedger(f"{path} is not a twiceproof ledger; {POINT}.")


def _is_ledger(path: Path) -> bool:
    """Open it read-only and look for our table."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT 1 FROM sqlite_master WHERE name='twiceproof_records'").fetchone()
    except sqlite3.OperationalError:
        return True  # locked, or not to be opened: the store itself says why
    except sqlite3.DatabaseError:
        return False
    return found is not None


LEDGER = "CREATE TABLE IF NOT EXISTS twiceproof_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL)"


def create_private(path: Path) -> bool:
    """Results can hold anything: only the owner may read them. The log files inherit these rights. Whether it is new.

    A file that is there is not opened: the close would drop the locks of every connection that this process has to it.
    """
    try:
        return _make(path.resolve())
    except OSError as error:
        if not path.parent.is_dir():
            raise StoreError(f"The directory {path.parent} does not exist; create it, or choose another.") from None
        move = "run this as a user who may write there, or choose another file"
        raise StoreError(f"{path} cannot be opened for writing ({error.strerror}); {move}.") from None


def _make(path: Path) -> bool:
    try:
        _make_empty(path)
    except FileExistsError:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
        if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
        return False
    return True


def _make_empty(path: Path) -> None:
    """Without a descriptor where that can be had: another thread may have opened it before ours is closed."""
    try:
        os.mknod(path, stat.S_IFREG | 0o600)
    except PermissionError:  # not permitted to every user, nor on every system
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def migrate(db: sqlite3.Connection, clock: Clock, patience: float) -> None:
    """Apply what is missing. Ten processes may do this at once: the write lock makes them queue."""
    known = migrations("sqlite")
    if applied(db) == len(known) and _journal(db) == "wal":
        return
    patiently(db, "PRAGMA journal_mode=WAL", clock, patience)
    begin_immediate(db, clock, patience)
    try:
        db.execute(LEDGER)
        done = applied(db)
        refuse_locked(done)
        if done > len(known):
            raise SchemaMismatch(
                f"The file was written by a newer release (schema {done}, this one knows {len(known)}); "
                "upgrade twiceproof."
            )
        for migration in known[done:]:
            for statement in statements(migration.sql):
                db.execute(statement)
            db.execute("INSERT INTO twiceproof_migrations VALUES (?, ?)", (migration.number, migration.name))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def applied(db: sqlite3.Connection) -> int:
    known = db.execute("SELECT 1 FROM sqlite_master WHERE name='twiceproof_migrations'").fetchone()
    if known is None:
        return 0
    (number,) = db.execute("SELECT coalesce(max(number), 0) FROM twiceproof_migrations").fetchone()
    return int(number)


def _journal(db: sqlite3.Connection) -> str:
    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    return str(mode)


def statements(sql: str) -> list[str]:
    """A script cut into statements: `executescript` would commit on its own."""
    found, part = [], ""
    for line in sql.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            found.append(part)
            part = ""
    return found
