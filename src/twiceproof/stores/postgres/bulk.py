"""All records of a PostgreSQL ledger: read from one snapshot, and loaded as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from ...clock import Clock, system_clock
from ...errors import StoreError, StoreUnavailable
from ...records import Address, Record
from ..base import LOCKED_LEDGER, LedgerLock, row_of
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
        """Return the spaces in which somebody holds a lease now, a few of them."""
        return [space for (space,) in self._ask(LEASES)]

    def lock(self) -> LedgerLock | None:
        found = self._ask(LOCK, (LOCKED_LEDGER,))
        return LedgerLock.read(found[0][0]) if found else None

    def set_lock(self, lock: LedgerLock | None) -> None:
        self.load((), lock)

    def load(self, rows: Iterable[tuple[int, Record]], lock: LedgerLock | None) -> None:
        """Insert records and note how far this has come, in one transaction."""
        with _translated(), self._db.transaction(), self._db.cursor() as cursor:
            with cursor.copy(self._sql(COPY)) as copy:
                for _, record in rows:
                    copy.write_row(row_of(record))
            cursor.execute(self._sql(UNLOCK), (LOCKED_LEDGER,))
            if lock is not None:
                cursor.execute(self._sql(SET_LOCK), (LOCKED_LEDGER, lock.text()))

    def empty(self) -> None:
        with _translated():
            self._db.execute(self._sql("DELETE FROM {schema}.twiceproof_records"))

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
