"""One row of a table, by its unique key: found, inserted or updated, on one connection.

The row is looked for first, on PostgreSQL by the same statement that inserts it: most calls find an existing row, and
an INSERT that conflicts would draw a number from the table's sequence, or on MariaDB take a lock. `ON CONFLICT DO
NOTHING` returns no row to the second caller, so the row is read again. `DO UPDATE` would return it, but would also
write it and run its triggers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal

from msgspec import Struct

from ..clock import system_clock
from ..errors import NotDone, OutcomeUnknown, ValueRefused
from ..keys.canonical import canonical
from .sql_connection import Answered, SqlConnection, SqlError
from .sql_databases import SqlDatabase
from .sql_dialects import DialectRules, FoundIndex, FoundTable, rules_for

__all__ = ["RowRequest", "RowWriter", "same_value"]


CHECKED_FOR = 300.0  # seconds: an index may be dropped while a process runs
MOST_TABLES = 1_000
SURE = 3  # rows in a row that were all new, or all known


class RowRequest(Struct, frozen=True):
    """Which row is requested, and its values. `mark` is a column for the effect key of the call that inserts it;
    `normalized` says that texts of the key are in one form, so that a merging collation does no harm.
    """

    table: str
    key: Mapping[str, Any]
    values: Mapping[str, Any]
    returning: Sequence[str] = ()  # a tuple, once it is checked
    mark: str = ""
    normalized: bool = False

    @property
    def shape(self) -> tuple[Any, ...]:
        """What its statements depend on."""
        texts = tuple(isinstance(value, str) for value in self.key.values())
        return self.table, tuple(self.key), texts, tuple(self.values), tuple(self.returning), self.mark, self.normalized

    @property
    def written(self) -> tuple[str, ...]:
        return (*self.key, *self.values, *([self.mark] if self.mark else ()))


class _Statements(Struct):
    """A table that has been checked for a request's key, and the statements for it."""

    rules: DialectRules
    table: FoundTable
    index: FoundIndex
    columns: tuple[str, ...]
    find: str
    insert: str  # with the key behind the values, if `looks`
    update: str
    either: str  # finds or inserts; "" where that would lock what it reads
    until: float
    looks: bool = False  # whether `insert` looks for the row itself
    streak: int = 0  # how many of the last rows were new, one after the other; below zero: were there already

    def first(self) -> Literal["find", "insert", "both"]:
        """Return what probably needs one round trip: an import has new rows only, a nightly comparison known ones."""
        if self.streak >= SURE and (self.looks or not self.table.uses_up):
            return "insert"
        return "both" if self.either and self.streak > -SURE else "find"

    def note(self, *, created: bool) -> None:
        self.streak = max(self.streak, 0) + 1 if created else min(self.streak, 0) - 1


class RowWriter:
    """Finds and writes the row of one request. `joined`: in a transaction that others commit."""

    def __init__(
        self, database: SqlDatabase, connection: SqlConnection, request: RowRequest, effect_key: str, *, joined: bool
    ) -> None:
        self._connection = connection
        self._request = request
        self._joined = joined
        self.refused_by = ""  # another unique index than the key's
        with self._explained(writes=False):
            self._made = _statements(database, connection, request)
        self._given = {**request.key, **request.values, **({request.mark: effect_key} if request.mark else {})}

    # -- statements ------------------------------------------------------------------------------

    def find(self) -> dict[str, Any] | None:
        """Return the row. Raises NotDone if the database returns one whose key is written differently."""
        with self._explained(writes=False):
            row = self._row(self._connection.run(self._made.find, self._encoded(self._request.key)))
        if row is not None:
            self._refuse_merged(row)
        return row

    def find_or_insert(self) -> tuple[dict[str, Any] | None, bool]:
        """Return the row, and whether it was inserted."""
        made = self._made
        first = made.first() if not self._joined else "both" if made.either else "find"
        row, created = self.find() if first == "find" else None, False
        if row is None:
            row, created = self._both() if first == "both" else (self.insert(), True)
        if row is None:
            row, created = self.find(), False
            if row is None and self.refused_by:
                raise self.other_index(self.refused_by)
        made.note(created=created)
        return row, created

    def _both(self) -> tuple[dict[str, Any] | None, bool]:
        answer = self._writing(self._made.either, self._encoded(self._request.key) + self._encoded(self._given))
        if answer is None or not answer.rows:
            return None, False
        ((created, *cells),) = answer.rows
        row = dict(zip(self._made.columns, cells, strict=True))
        (self._refuse_changed if created else self._refuse_merged)(row)
        return row, created

    def insert(self) -> dict[str, Any] | None:
        """Insert the row and return it; None if it exists, or if another unique index refused it."""
        values = self._encoded(self._given) + (self._encoded(self._request.key) if self._made.looks else [])
        answer = self._writing(self._made.insert, values)
        if answer is None:
            return None
        row = self._row(answer) if self._made.rules.returns_rows else self.find()
        if row is not None:
            self._refuse_changed(row)
        return row

    def _writing(self, statement: str, values: Sequence[Any]) -> Answered | None:
        """Run an INSERT; None if a unique index refused it."""
        with self._explained(writes=True):
            try:
                with self._savepoint():
                    return self._connection.run(statement, values)
            except SqlError as error:
                if error.meaning != "unique":
                    raise
                self.refused_by = "" if error.index == self._made.index.name else error.index or "another one"
                return None

    def update(self) -> dict[str, Any] | None:
        """Write the values over the row, and return it; None: it is gone."""
        texts = {name: value for name, value in self._request.key.items() if isinstance(value, str)}
        parts = (self._request.values, self._request.key, texts)
        values = [value for part in parts for value in self._encoded(part)]
        with self._explained(writes=True):
            try:
                self._connection.run(self._made.update, values)
            except SqlError as error:
                if error.meaning == "unique":
                    raise self.other_index(error.index) from error
                raise
        return self.find()

    def _encoded(self, values: Mapping[str, Any]) -> list[Any]:
        made = self._made
        return [made.rules.encode(value, made.table.columns[name]) for name, value in values.items()]

    def _row(self, answer: Answered) -> dict[str, Any] | None:
        return dict(zip(self._made.columns, answer.rows[0], strict=True)) if answer.rows else None

    @contextlib.contextmanager
    def _savepoint(self) -> Iterator[None]:
        """In PostgreSQL a refused statement ends its transaction, and the row could not be read any more."""
        if not self._joined or self._connection.dialect != "postgresql" or len(self._made.table.indexes) < 2:
            yield
            return
        self._connection.run("SAVEPOINT twiceproof_row")
        try:
            yield
        except SqlError:
            self._connection.run("ROLLBACK TO SAVEPOINT twiceproof_row")
            raise
        self._connection.run("RELEASE SAVEPOINT twiceproof_row")

    @contextlib.contextmanager
    def _explained(self, *, writes: bool) -> Iterator[None]:
        """Turn a driver's error into ours. Passing errors are left to the caller, who may retry, unless a transaction
        is open.
        """
        try:
            yield
        except SqlError as error:
            passing = error.meaning == "passing" or (error.meaning == "lost" and not writes)
            if passing and not self._joined:
                raise
            if error.meaning == "lost" and not self._joined:
                raise OutcomeUnknown(f"The connection was lost ({error}); the row may have been written.") from error
            final = error.meaning == "refused"
            move = "Change what is written, or the table" if final else "Try again"
            raise NotDone(f"The database refused ({error}); nothing was written. {move}.", final=final) from error

    # -- comparing -------------------------------------------------------------------------------

    def differing(self, row: Mapping[str, Any]) -> list[str]:
        """Return the columns in which a row has other values than asked for."""
        return [name for name, value in self._request.values.items() if not self._same(name, value, row[name])]

    def _same(self, name: str, given: Any, found: Any) -> bool:
        return same_value(given, found, self._made.rules.encode(given, self._made.table.columns[name]))

    def _refuse_merged(self, row: Mapping[str, Any]) -> None:
        for name, given in self._request.key.items():
            if not _same_key(given, row[name]):
                raise self._merged(name)

    def _merged(self, name: str) -> NotDone:
        table, column = self._request.table, self._made.table.columns[name]
        by = f"collation {column.collation}" if column.collation else f"type {column.type}"
        return NotDone(
            f"{table} has a row whose {name} is written differently from what was asked for, and the {by} takes the "
            f"two for the same. Nothing was written. Bring {name} into one form first (strip, casefold), or declare "
            f"the column so that it tells them apart ({_EXACT[self._connection.dialect]}).",
            final=True,
        )

    def _refuse_changed(self, row: Mapping[str, Any]) -> None:
        """Refuse a row whose key was changed by a trigger or a type that rounds: it would not be found again."""
        for name, given in self._request.key.items():
            if not _same_key(given, row[name]) or not self._same(name, given, row[name]):
                raise OutcomeUnknown(
                    f"{self._request.table} has the row, with another {name} than was asked for: a trigger or the "
                    f"type {self._made.table.columns[name].type} changed it. Give {name} as it is stored.",
                    repeats=True,
                )

    def other_index(self, index: str) -> NotDone:
        return NotDone(
            f"{self._request.table} has no row with this key, and its unique index {index} refused a new one: another "
            "row has the same value there. Nothing was written. Make that index part of the key, or change the value.",
            final=True,
        )


_EXACT = {
    "postgresql": 'text COLLATE "C"',
    "sqlite": "COLLATE BINARY",
    "mysql": "COLLATE utf8mb4_bin, or VARBINARY",
}


def _same_key(given: Any, found: Any) -> bool:
    """Whether two texts are exactly equal; other types have been compared by their database."""
    if isinstance(given, str) and isinstance(found, str | int):
        return given == str(found)
    return bytes(given) == bytes(found) if isinstance(given, bytes) and isinstance(found, bytes) else True


def same_value(given: Any, found: Any, encoded: Any) -> bool:
    """Whether a stored value equals the given one. Databases return other types than they were given."""
    if isinstance(given, str) and isinstance(found, str):
        return given == found
    if isinstance(given, dict | list) and isinstance(found, str):
        with contextlib.suppress(ValueError):
            found = json.loads(found)
    if isinstance(given, datetime) and isinstance(found, datetime) and given.tzinfo is None:
        found = found.replace(tzinfo=None)  # the database read it as a time in the session's zone, and returns it so
    if isinstance(given, time) and isinstance(found, timedelta):
        found = (datetime.min + found).time()
    texts = {_text(given), _text(encoded)} | ({_text(str(encoded))} if isinstance(encoded, int | Decimal) else set())
    return _text(found) in texts


def _text(value: Any) -> bytes:
    try:
        return canonical(bytes(value) if isinstance(value, bytearray | memoryview) else value)
    except ValueRefused:
        return repr(value).encode()


# -- tables --------------------------------------------------------------------------------------


def _statements(database: SqlDatabase, connection: SqlConnection, request: RowRequest) -> _Statements:
    """Check the table at its first use, and again from time to time."""
    now = system_clock.monotonic()
    made: _Statements | None = database.tables.get(request.shape)
    if made is None or made.until < now:
        if len(database.tables) >= MOST_TABLES:
            database.tables.clear()
        made = database.tables[request.shape] = _written(connection, request, now + CHECKED_FOR)
    return made


def _written(connection: SqlConnection, request: RowRequest, until: float) -> _Statements:
    rules = rules_for(connection)
    schema, _, name = request.table.rpartition(".")
    table = rules.find(connection, schema, name)
    if table is None:
        raise NotDone(f"There is no table {request.table} for this user; create it, or correct its name.", final=True)
    _refuse_unknown_columns(request, table)
    index = _index_of(request, table)
    _refuse_merging(connection, rules, request, table, index)
    columns = tuple(dict.fromkeys((*table.primary, *request.written, *request.returning)))
    looks = rules.finds_and_inserts and table.uses_up
    return _Statements(rules, table, index, columns, *_texts(rules, table, index, request, columns), until, looks)


def _texts(
    rules: DialectRules, table: FoundTable, index: FoundIndex, request: RowRequest, columns: Sequence[str]
) -> tuple[str, str, str, str]:
    """Return how the row is found, inserted, updated, and found or inserted by one statement."""
    quote = rules.quote
    name = ".".join(quote(part) for part in (table.schema, table.name) if part)
    listed = ", ".join(map(quote, columns))
    where = " AND ".join(rules.equals(column, index) for column in request.key)
    marks = ", ".join([rules.mark] * len(request.written))
    begin = f"INSERT INTO {name} ({', '.join(map(quote, request.written))})"
    end = f"{rules.target(index)}{f' RETURNING {listed}' if rules.returns_rows else ''}"
    changes = ", ".join(f"{quote(column)} = {rules.mark}" for column in request.values)
    exact = [rules.same_bytes(column) for column, value in request.key.items() if isinstance(value, str)]
    find = f"SELECT {listed} FROM {name} WHERE {where}"  # noqa: S608 - names are quoted
    update = f"UPDATE {name} SET {changes} WHERE {' AND '.join([where, *exact])}"  # noqa: S608 - names are quoted
    plain = f"{begin} VALUES ({marks}) {end}"
    if not rules.finds_and_inserts:
        return find, plain, update, ""

    def unless(found: str) -> str:
        """The INSERT has no row for one that is there, so that it draws no number of a sequence."""
        return f"{begin} SELECT {marks} WHERE NOT EXISTS (SELECT 1 FROM {found}) {end}"  # noqa: S608

    both = (
        f"WITH found AS ({find}), made AS ({unless('found')}) "  # noqa: S608 - names are quoted
        f"SELECT false, {listed} FROM found UNION ALL SELECT true, {listed} FROM made"
    )
    return find, unless(f"{name} WHERE {where}") if table.uses_up else plain, update, both


def _refuse_unknown_columns(request: RowRequest, table: FoundTable) -> None:
    unknown = [name for name in (*request.written, *request.returning) if name not in table.columns]
    if unknown:
        raise NotDone(
            f"{request.table} has no column {', '.join(unknown)}; it has {', '.join(table.columns)}. Use these.",
            final=True,
        )


def _refuse_merging(
    connection: SqlConnection, rules: DialectRules, request: RowRequest, table: FoundTable, index: FoundIndex
) -> None:
    """Refuse an index that treats different texts as one key. Refused at first use, since two such keys may come much
    later.
    """
    texts = () if request.normalized else (name for name, value in request.key.items() if isinstance(value, str))
    for name in texts:
        by = rules.merged_by(table.columns[name], index)
        if by:
            raise NotDone(
                f"{request.table} compares {name} by {by}, which takes different texts for the same key (ana and ANA, "
                f"for example). Nothing was written. Declare the column so that it tells them apart "
                f"({_EXACT[connection.dialect]}); or bring {name} into one form first (strip, casefold) and say "
                "normalized=True.",
                final=True,
            )


def _index_of(request: RowRequest, table: FoundTable) -> FoundIndex:
    """Return the unique index on exactly the key's columns, without which two concurrent callers would both insert."""
    asked = set(request.key)
    fitting = [index for index in table.indexes if set(index.columns) == asked]
    for index in fitting:
        if not index.flaw:
            return index
    listed = ", ".join(request.key)
    flawed = [index for index in table.indexes if index.flaw and (index in fitting or not index.columns)]
    near = "".join(f" Its unique index {index.name} {index.flaw}." for index in flawed)
    stem = "_".join([table.name, *request.key])
    raise NotDone(
        f"{request.table} has no unique index on exactly ({listed}), so two callers at once would both insert.{near} "
        f"Nothing was written. Create it: CREATE UNIQUE INDEX {stem}_key ON {request.table} ({listed});",
        final=True,
    )
