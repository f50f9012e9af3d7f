"""All records of a PostgreSQL ledger: read from one snapshot, and loaded as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from ...clock import Clock, system_clock
from ...errors import StoreError, StoreUnavailable
from ...records import Address, Record
from ..base import LOCKED, LOCKED_LEDGER, LedgerLock, row_of
from .connection import RAISED_AS_LOCKED
from .schema import SCHEMA, in_schema, split_schema

__all__ = ["PostgresBulk"]

COLUMNS = "id, space, kind, key, state, version, fence, nonce, created_at, updated_at, lease_until, queue, due_at, body"
ROWS = f"SELECT {COLUMNS} FROM {{schema}}.twiceproof_records WHERE id > %s ORDER BY id"  # noqa: S608 - constants
# Ids are drawn by the table itself, in the order of the rows.
COPY = f"COPY {{schema}}.twiceproof_records ({COLUMNS.removeprefix('id, ')}) FROM STDIN"
NOW = "{schema}.twiceproof_now()"
LEASES = f"SELECT space FROM {{schema}}.twiceproof_records WHERE lease_until > {NOW} LIMIT 3"  # noqa: S608 - constants
LOCK = "SELECT name FROM {schema}.twiceproof_migrations WHERE number = %s"
UNLOCK = "DELETE FROM {schema}.twiceproof_migrations WHERE number = %s"
SET_LOCK = "INSERT INTO {schema}.twiceproof_migrations VALUES (%s, %s)"
# A process that had the ledger open when it was locked does not look at the lock again.
SEALS = (
    f"""CREATE OR REPLACE FUNCTION {{schema}}.twiceproof_locked() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION '{LOCKED}' USING ERRCODE = '{RAISED_AS_LOCKED}'; END $$""",
    """CREATE OR REPLACE TRIGGER twiceproof_locked BEFORE INSERT OR UPDATE OR DELETE ON {schema}.twiceproof_records
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.twiceproof_locked()""",
)
UNSEALS = (
    "DROP TRIGGER IF EXISTS twiceproof_locked ON {schema}.twiceproof_records",
    "DROP FUNCTION IF EXISTS {schema}.twiceproof_locked()",
)
ADVANCE = "SELECT setval('{schema}.twiceproof_number', greatest(last_value, %s)) FROM {schema}.twiceproof_number"


class PostgresBulk:
    """Reads and loads whole ledgers. Records keep their versions, fences and times."""

    def __init__(self, url: str, *, create: bool = False, clock: Clock = system_clock) -> None:
        from .engine import PostgresEngine

        address, schema = split_schema(url)
        self._schema = schema or SCHEMA
        with _translated():
            self._db = psycopg.connect(address, autocommit=True)
        if self._missing():
            PostgresEngine(url, clock=clock, create=create).close()  # without `create`, it says that there is none
        info = self._db.info
        self.identity = f"postgresql:{info.host}:{info.port}/{info.dbname}/{self._schema}"

    def rows(self, after: int = 0, *, size: int) -> Iterator[list[tuple[int, Record]]]:
        """Return the records with a larger id than `after`, page by page, from one snapshot."""
        with _translated(), self._db.transaction():
            self._db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            with self._db.cursor(name="twiceproof_rows") as found:
                found.execute(self._sql(ROWS), (after,))
                while page := found.fetchmany(size):
                    yield [(row[0], _record(row)) for row in page]

    def count(self) -> int:
        return int(self._ask("SELECT count(*) FROM {schema}.twiceproof_records")[0][0])

    def leases(self) -> Sequence[str]:
        """Return some of the spaces that are held under a lease now."""
        return [space for (space,) in self._ask(LEASES)]

    def lock(self) -> LedgerLock | None:
        found = self._ask(LOCK, (LOCKED_LEDGER,))
        return LedgerLock.read(found[0][0]) if found else None

    def lock_empty(self, lock: LedgerLock) -> bool:
        """Lock it if it has no records. False: it has some, and is left as it is."""
        with self._writing() as cursor:
            self._lock(cursor, lock)  # first: it waits for other writers, and keeps them out
            empty = not self.count()
            if not empty:
                self._lock(cursor, None)
        return empty

    def set_lock(self, lock: LedgerLock | None) -> None:
        with self._writing() as cursor:
            self._lock(cursor, lock)

    def load(self, rows: Iterable[tuple[int, Record]], lock: LedgerLock | None) -> None:
        """Insert records and note how far this has come, in one transaction."""
        with self._writing() as cursor:
            self._lock(cursor, None)
            with cursor.copy(self._sql(COPY)) as copy:
                for _, record in rows:
                    copy.write_row(row_of(record))
            self._lock(cursor, lock)

    def empty(self) -> None:
        """Remove all records of a ledger that is locked."""
        before = self.lock()
        with self._writing() as cursor:
            self._lock(cursor, None)
            cursor.execute(self._sql("DELETE FROM {schema}.twiceproof_records"))
            self._lock(cursor, before)

    def _lock(self, cursor: psycopg.Cursor, lock: LedgerLock | None) -> None:
        """Set or remove the lock, within a transaction: for who opens the ledger, and for who has it open."""
        cursor.execute(self._sql(UNLOCK), (LOCKED_LEDGER,))
        if lock is not None:
            cursor.execute(self._sql(SET_LOCK), (LOCKED_LEDGER, lock.text()))
        for statement in UNSEALS if lock is None else SEALS:
            cursor.execute(self._sql(statement))

    @contextmanager
    def _writing(self) -> Iterator[psycopg.Cursor]:
        with _translated(), self._db.transaction(), self._db.cursor() as cursor:
            yield cursor

    def advance(self, highest: int) -> None:
        """Draw no number again: go on behind the highest that was loaded, and behind the present."""
        self._ask(ADVANCE, (highest,))
        self._ask("SELECT {schema}.twiceproof_advance(0)")

    def close(self) -> None:
        self._db.close()

    def _missing(self) -> bool:
        with _translated():
            named = f'"{self._schema}".twiceproof_migrations'
            row = self._db.execute("SELECT to_regclass(%s)", (named,)).fetchone()
        return row is None or row[0] is None

    def _ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with _translated():
            return self._db.execute(self._sql(sql), values).fetchall()

    def _sql(self, sql: str) -> bytes:
        return in_schema(sql, self._schema)


@contextmanager
def _translated() -> Iterator[None]:
    """Errors without the server's details, which may hold a row's contents."""
    try:
        yield
    except psycopg.OperationalError as error:
        text = str(error).partition("\n")[0]
        raise StoreUnavailable(f"The database did not answer ({text}); check it, and run this again.") from None
    except psycopg.Error as error:
        text = error.diag.message_primary or type(error).__name__
        raise StoreError(f"PostgreSQL refused: {text}. Check the role's rights on the ledger's schema.") from None


def _record(row: tuple[Any, ...]) -> Record:
    _, space, kind, key, state, version, fence, nonce, created, updated, lease, queue, due, body = row
    at = Address(space, kind, key)
    return Record(at, body, state, str(version), fence, nonce, created, updated, lease, queue, due)
