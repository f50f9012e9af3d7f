"""Rows in a user's SQL database, by a unique key: `find_or_create`, `upsert` and `insert_once`.

    customer = sql.find_or_create(CRM, "customers", key={"email": email}, values={"name": name})

Each is safe to repeat. In the ledger's own database the row and the ledger's entry are committed together.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import UUID

from msgspec import Struct, structs

from ..clock import jitter, system_clock
from ..errors import Misuse, NotDone, TwiceproofError
from ..keys.canonical import datetime_text, span_text, time_text
from ..safe_text import escape_invisible
from ..stores.base import Store
from .base import Absent, Happened, Look, Unknown, preparing, refuse_blank_key
from .repeat import Declared
from .sql_connection import SqlConnection, SqlError
from .sql_databases import SqlDatabase, database_of
from .sql_rows import RowRequest, RowWriter

__all__ = ["JoinedRow", "Row", "RowEffect", "find_or_create", "insert_once", "upsert"]


Verb = Literal["find_or_create", "upsert", "insert_once"]

PATIENCE = 10.0  # seconds for which deadlocks and serialization failures are tried again
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.2
ROUNDS = 4  # reads: before the insert, after a lost race, and for rows that are deleted meanwhile
LONGEST_NAME = 63  # bytes: PostgreSQL cuts longer ones off
LONGEST_TARGET = 100
KEY_TYPES = (str, int, bytes, Decimal, date, UUID, Enum)
VALUE_TYPES = (*KEY_TYPES, float, time, dict, list, type(None))


class Row(Struct, frozen=True):
    """A row as it is in the table: the primary key, the columns that were given, and those of `returning=`.

    `created`: this call inserted it. Values are as in JSON, whether they come from the table or the ledger: decimals,
    dates and UUIDs are texts, bytes are base64.
    """

    created: bool
    values: dict[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.values[column]


class RowEffect(Struct, frozen=True, eq=False):
    """What `find_or_create`, `upsert` and `insert_once` return: a request for a row."""

    verb: Verb
    db: Any
    request: RowRequest

    @property
    def name(self) -> str:
        shown = ",".join(f"{column}={_json_value(value)}" for column, value in self.request.key.items())
        if len(shown) > LONGEST_TARGET or shown != escape_invisible(shown):
            shown = sha256(shown.encode(errors="surrogatepass")).hexdigest()[:16]
        return f"{self.verb} {self.request.table}/{shown}"

    @property
    def repeat(self) -> Declared:
        return Declared("safe", self.look)

    @property
    def result_type(self) -> Any:
        return Row

    def describe(self) -> dict[str, Any]:
        request = self.request
        return {
            "sql": self.verb,
            "database": _database_name(self.db),
            "table": request.table,
            "key": {column: _json_value(value) for column, value in request.key.items()},
            "values": {column: _json_value(value) for column, value in request.values.items()},
        }

    def perform(self, effect_key: str) -> Row:
        """Find or write the row. Deadlocks and serialization failures, after which nothing is written, are retried."""
        with preparing(self.name):
            database = database_of(self.db)
        deadline, pause = system_clock.monotonic() + PATIENCE, FIRST_PAUSE
        while True:
            try:
                with database.open() as connection:
                    return self._on(database, connection, effect_key, joined=False)
            except SqlError as error:
                if system_clock.monotonic() >= deadline:
                    raise NotDone(
                        f"The database was busy for {PATIENCE:g} s ({error}); nothing was written. Try again.",
                        retry_after=1.0,
                    ) from error
                if error.meaning == "lost":
                    database.close_idle()  # the server was restarted: idle connections are lost, too
            system_clock.sleep(jitter(pause))
            pause = min(pause * 2, LONGEST_PAUSE)

    def look(self, effect_key: str) -> Look:
        """Read the row by its key. Only a mark tells whether this call inserted it."""
        try:
            database = database_of(self.db)
            with database.open() as connection:
                writer = RowWriter(database, connection, self.request, effect_key, joined=False)
                row = writer.find()
        except (TwiceproofError, SqlError) as error:
            return Unknown(str(error), failed=True)
        if row is None:
            return Absent()
        other = [] if self.verb == "find_or_create" else writer.differing(row)
        if other:
            return Unknown(f"the row is there, with other values in {', '.join(other)}")
        return Happened(self._row(row, effect_key))

    def joined(self, store: Store) -> JoinedRow | None:
        """Return the work on one of `connect`'s connections, if the row is in the ledger's own database."""
        if getattr(store, "joins", None) is None:
            return None
        database = database_of(self.db)
        try:
            own = database.is_ledgers(store)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - out of reach, or not allowed to ask: it is an effect like others then
            return None
        return JoinedRow(self, database) if own else None

    # -- the work --------------------------------------------------------------------------------

    def _on(self, database: SqlDatabase, connection: SqlConnection, effect_key: str, *, joined: bool) -> Row:
        writer = RowWriter(database, connection, self.request, effect_key, joined=joined)
        for _ in range(ROUNDS):
            row, created = writer.find_or_insert()
            if row is not None and not created:
                row = self._settled(writer, row)
            if row is not None:
                return self._row(row, effect_key, created=created)
        raise NotDone(
            f"{self.request.table} refuses the row as one that exists, and does not show it: it is hidden from this "
            "user (row-level security), read from a replica that lags, or deleted as soon as it is written. Nothing "
            "was written. Use a user that sees it, on the primary server."
        )

    def _settled(self, writer: RowWriter, row: dict[str, Any]) -> dict[str, Any] | None:
        """Bring the existing row to the requested values; None if it was deleted meanwhile."""
        other = [] if self.verb == "find_or_create" else writer.differing(row)
        if not other:
            return row
        if self.verb == "insert_once":
            raise NotDone(
                f"{self.request.table} has a row with this key and other values in {', '.join(other)}. Nothing was "
                "written. Use another key, or sql.upsert if the row is to be changed.",
                final=True,
            )
        return writer.update()

    def _row(self, row: dict[str, Any], effect_key: str, *, created: bool = False) -> Row:
        mark = self.request.mark
        ours = created or (bool(mark) and row[mark] == effect_key)
        hidden = mark if mark not in self.request.returning else ""
        return Row(ours, {column: _json_value(value) for column, value in row.items() if column != hidden})


class JoinedRow:
    """The same request in a transaction that the ledger commits, on connections from `connect`."""

    def __init__(self, effect: RowEffect, database: SqlDatabase) -> None:
        self._effect = effect
        self._database = database
        self.connect: Callable[[], Any] = database.lend

    def __call__(self, connection: Any, effect_key: str = "") -> Row:
        return self._effect._on(self._database, SqlConnection(connection), effect_key, joined=True)


def _database_name(db: Any) -> str:
    """Name the database without its host, which may change, and without its password, which must not be shown."""
    try:
        return urlsplit(db).path.rpartition("/")[2] if isinstance(db, str) and "://" in db else ""
    except ValueError:
        return ""


def _json_value(value: Any) -> Any:
    """Return the value as JSON. Types that JSON does not have become text."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _json_value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(one) for one in value]
    return _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    if isinstance(value, datetime):
        return datetime_text(value)
    if isinstance(value, time):
        return time_text(value)
    if isinstance(value, timedelta):
        return span_text(value)
    return value.isoformat() if isinstance(value, date) else str(value)


# -- what is called ------------------------------------------------------------------------------


def find_or_create(
    db: Any,
    table: str,
    *,
    key: Mapping[str, Any],
    values: Mapping[str, Any] | None = None,
    returning: Sequence[str] = (),
    mark: str = "",
    normalized: bool = False,
) -> RowEffect:
    """Find the row with this key, or insert it with these values. An existing row is not changed.

    Args:
        db: A URL, `env("NAME")` of one, a function that makes a connection, a SQLAlchemy engine or a pool.
        table: Its name, with its schema if need be: `crm.customers`.
        key: The columns of a unique index, exactly, and their values.
        values: Further columns of a new row.
        returning: Further columns that the result contains.
        mark: A column that is given the effect key of the call that inserts the row: `created` is then true for that
            call even if it is repeated after a crash.
        normalized: Says that texts of the key are always given in one form (strip, casefold). Without it, a column
            whose collation treats different texts as equal is refused.
    """
    return _effect("find_or_create", db, RowRequest(table, key, values or {}, returning, mark, normalized))


def upsert(
    db: Any,
    table: str,
    *,
    key: Mapping[str, Any],
    values: Mapping[str, Any],
    returning: Sequence[str] = (),
    mark: str = "",
    normalized: bool = False,
) -> RowEffect:
    """Insert the row with this key, or set these columns of the one that is there. An equal row is not written.

    The arguments are those of `find_or_create`.
    """
    return _effect("upsert", db, RowRequest(table, key, values, returning, mark, normalized))


def insert_once(
    db: Any,
    table: str,
    *,
    key: Mapping[str, Any],
    values: Mapping[str, Any],
    returning: Sequence[str] = (),
    mark: str = "",
    normalized: bool = False,
) -> RowEffect:
    """Insert the row with this key. The same row again is no error; other values under the same key are refused.

    The arguments are those of `find_or_create`.
    """
    return _effect("insert_once", db, RowRequest(table, key, values, returning, mark, normalized))


def _effect(verb: Verb, db: Any, asked: RowRequest) -> RowEffect:
    key, given, mark = asked.key, dict(asked.values or {}), asked.mark
    if not isinstance(key, Mapping) or not key:
        raise Misuse(f'sql.{verb} needs key={{"column": value}}; give the columns of a unique index.')
    if isinstance(asked.returning, str):
        raise Misuse(f"returning={asked.returning!r} is one text; give a list of columns.")
    for name in (*asked.table.split("."), *key, *given, *asked.returning, *([mark] if mark else ())):
        _refuse_name(name)
    for name in {*key} & {*given, mark}:
        raise Misuse(f"{name} is in key= and given once more; leave it in key= alone.")
    for part, allowed in ((key, KEY_TYPES), (given, VALUE_TYPES)):
        for name, value in part.items():
            _refuse_value(name, value, allowed)
    refuse_blank_key(key)
    plain = structs.replace(asked, key=dict(key), values=given, returning=tuple(asked.returning))
    return RowEffect(verb, db, plain)


def _refuse_name(name: Any) -> None:
    if not isinstance(name, str) or not _is_name(name):
        raise Misuse(f"{name!r} is not the name of a table or column; write it as the database has it, up to 63 bytes.")


@lru_cache(1_024)  # each row names the same few
def _is_name(name: str) -> bool:
    return 0 < len(name.encode(errors="replace")) <= LONGEST_NAME and escape_invisible(name) == name


def _refuse_value(name: str, value: Any, allowed: tuple[type, ...]) -> None:
    if value is None and type(None) not in allowed:
        raise Misuse(f"The key's {name} is None, and a unique index holds any number of NULLs; give it a value.")
    if not isinstance(value, allowed):
        exact = " A key of floating point numbers is not exact: use a Decimal." if isinstance(value, float) else ""
        raise Misuse(f"{name} is of type {type(value).__name__}, which is not written here; give plain values.{exact}")
