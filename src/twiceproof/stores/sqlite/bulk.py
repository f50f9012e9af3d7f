"""All records of a SQLite ledger: read from one snapshot, and loaded as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...clock import Clock, system_clock
from ...records import Record
from ..base import LOCKED, LOCKED_LEDGER, LedgerLock, row_of
from .connection import begin_immediate, open_handle, translated
from .rows import COLUMNS, catch_up, record_of
from .schema import require_ledger

__all__ = ["SqliteBulk"]

PATIENCE = 10.0  # seconds to wait for another process that writes
ROWS = f"SELECT {COLUMNS} FROM twiceproof_records WHERE id>? ORDER BY id"  # noqa: S608 - constants
# A process that had the ledger open when it was locked does not look at the lock again.
SEALS = [
    f"CREATE TRIGGER IF NOT EXISTS twiceproof_locked_{verb} BEFORE {verb} ON twiceproof_records "
    f"BEGIN SELECT RAISE(ABORT, '{LOCKED}'); END"
    for verb in ("INSERT", "UPDATE", "DELETE")
]
UNSEALS = [f"DROP TRIGGER IF EXISTS twiceproof_locked_{verb}" for verb in ("INSERT", "UPDATE", "DELETE")]
LOAD = f"INSERT INTO twiceproof_records ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"  # noqa: S608 - constants


class SqliteBulk:
    """Reads and loads whole ledgers. Records keep their versions, fences and times."""

    def __init__(self, path: Path, *, create: bool = False, clock: Clock = system_clock) -> None:
        if create and not path.exists():
            from .engine import SqliteEngine

            SqliteEngine(path, clock=clock).close()
        require_ledger(path)
        self.identity = f"sqlite:{path.resolve()}"
        self._clock = clock
        self._db = open_handle(path)

    def rows(self, after: int = 0, *, size: int) -> Iterator[list[tuple[int, Record]]]:
        """Return the records with a larger id than `after`, page by page, from one snapshot."""
        with translated():
            self._db.execute("BEGIN")
            try:
                found = self._db.execute(ROWS, (after,))
                while page := found.fetchmany(size):
                    yield [(row[0], record_of(row)) for row in page]
            finally:
                self._db.execute("ROLLBACK")

    def count(self) -> int:
        return int(self._one("SELECT count(*) FROM twiceproof_records"))

    def leases(self) -> Sequence[str]:
        """Return some of the spaces that are held under a lease now."""
        sql = "SELECT space FROM twiceproof_records WHERE lease_until > ? LIMIT 3"
        with translated():
            return [space for (space,) in self._db.execute(sql, (self._clock.now(),))]

    def lock(self) -> LedgerLock | None:
        with translated():
            sql = "SELECT name FROM twiceproof_migrations WHERE number=?"
            row = self._db.execute(sql, (LOCKED_LEDGER,)).fetchone()
        return None if row is None else LedgerLock.read(row[0])

    def lock_empty(self, lock: LedgerLock) -> bool:
        """Lock it if it has no records. False: it has some, and is left as it is."""
        with self._writing():
            if self._one("SELECT count(*) FROM twiceproof_records"):
                return False
            self._lock(lock)
        return True

    def set_lock(self, lock: LedgerLock | None) -> None:
        with self._writing():
            self._lock(lock)

    def load(self, rows: Iterable[tuple[int, Record]], lock: LedgerLock | None) -> None:
        """Insert records and note how far this has come, in one transaction."""
        with self._writing():
            self._lock(None)
            self._db.executemany(LOAD, ((ident, *row_of(record)) for ident, record in rows))
            self._lock(lock)

    def empty(self) -> None:
        """Remove all records of a ledger that is locked."""
        before = self.lock()
        with self._writing():
            self._lock(None)
            self._db.execute("DELETE FROM twiceproof_records")
            self._lock(before)

    def _lock(self, lock: LedgerLock | None) -> None:
        """Set or remove the lock, within a transaction: for who opens the ledger, and for who has it open."""
        self._db.execute("DELETE FROM twiceproof_migrations WHERE number=?", (LOCKED_LEDGER,))
        if lock is not None:
            self._db.execute("INSERT INTO twiceproof_migrations VALUES (?, ?)", (LOCKED_LEDGER, lock.text()))
        for statement in UNSEALS if lock is None else SEALS:
            self._db.execute(statement)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with translated():
            begin_immediate(self._db, self._clock, PATIENCE)
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def advance(self, highest: int) -> None:
        """Draw no number again: go on behind the highest that was loaded, and behind the present."""
        with translated():
            self._db.execute("UPDATE twiceproof_counter SET number=? WHERE number < ?", (highest, highest))
            catch_up(self._db, self._clock.now())

    def close(self) -> None:
        self._db.close()

    def _one(self, sql: str) -> int:
        with translated():
            (value,) = self._db.execute(sql).fetchone()
        return int(value)
