"""PostgreSQL, SQLite and MariaDB: what their catalogues say about a table, and how statements are written for each.

MySQL is treated as MariaDB without RETURNING, and is unverified.

Names are quoted and values are parameters. A write names its conflict target, so that a refusal by another unique index
is not mistaken for one by the key's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Protocol
from uuid import UUID

from msgspec import Struct

from ..errors import NotDone
from ..keys.canonical import datetime_text
from .sql_connection import SqlConnection, SqlDialect

__all__ = ["DialectRules", "FoundIndex", "FoundTable", "TableColumn", "rules_for"]


class TableColumn(Struct, frozen=True):
    """A column: its type as its database names it, and the collation of its texts."""

    name: str
    type: str
    collation: str = ""


class FoundIndex(Struct, frozen=True):
    """A unique index. `flaw` says why it does not make a key unique, in words that follow its name."""

    name: str
    columns: tuple[str, ...]
    collations: tuple[str, ...] = ()  # SQLite's collations, which a conflict target must name
    flaw: str = ""


class FoundTable(Struct, frozen=True):
    """`uses_up`: whether an INSERT that finds the row there may use something up: a number, or what a trigger did."""

    schema: str
    name: str
    columns: Mapping[str, TableColumn]
    primary: tuple[str, ...]
    indexes: tuple[FoundIndex, ...]
    uses_up: bool = True


class DialectRules(Protocol):
    """How one database is queried and written to."""

    mark: str
    returns_rows: bool  # whether an INSERT can return its row
    finds_and_inserts: bool  # whether one statement can do both, without locks on what it reads

    def find(self, connection: SqlConnection, schema: str, name: str) -> FoundTable | None:
        """Return what the catalogue says about a table; None: it does not exist."""

    def quote(self, name: str) -> str: ...

    def target(self, index: FoundIndex) -> str:
        """Return the clause after an INSERT that must not fail if the key exists."""

    def equals(self, column: str, index: FoundIndex) -> str:
        """Return the condition that a column of the key has this value, compared as its unique index does."""

    def same_bytes(self, column: str) -> str:
        """Return the condition that a text has exactly this value, independent of the collation."""

    def merged_by(self, column: TableColumn, index: FoundIndex) -> str:
        """Return the collation or type by which the index treats different texts as equal; "": it treats none so."""

    def encode(self, value: Any, column: TableColumn) -> Any:
        """Return the value in a form that the driver accepts."""


def _plain_enum(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _in_utc(value: Any) -> Any:
    """Return a time in UTC, for a column without a time zone."""
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _double_quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _grouped(rows: Sequence[Sequence[Any]]) -> dict[str, list[Sequence[Any]]]:
    found: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row[1:])
    return found


# -- PostgreSQL ----------------------------------------------------------------------------------

PG_TABLE = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind <> 'r'
    OR EXISTS (SELECT 1 FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
    OR EXISTS (SELECT 1 FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attidentity <> '')
    OR EXISTS (SELECT 1 FROM pg_catalog.pg_attrdef d
        WHERE d.adrelid = c.oid AND strpos(pg_catalog.pg_get_expr(d.adbin, d.adrelid), '(') > 0)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%s) AND c.relkind IN ('r', 'p', 'f')"""
PG_COLUMNS = """
SELECT a.attname, t.typname, coalesce(l.collname, ''), coalesce(l.collisdeterministic, true)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
PG_INDEXES = """
SELECT c.relname, a.attname, i.indisprimary, i.indisvalid, i.indimmediate,
    pg_catalog.pg_get_expr(i.indpred, i.indrelid), pg_catalog.pg_get_expr(i.indexprs, i.indrelid),
    a.attcollation IS NULL OR a.attcollation = i.indcollation[k.place - 1]
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(number, place)
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number AND k.number > 0
WHERE i.indrelid = %s AND i.indisunique AND k.place <= i.indnkeyatts ORDER BY c.relname, k.place"""

NOT_DETERMINISTIC = " (not deterministic)"


class PostgresRules:
    mark = "%s"
    returns_rows = True
    finds_and_inserts = True

    def find(self, connection: SqlConnection, schema: str, name: str) -> FoundTable | None:
        dotted = ".".join(_double_quoted(part) for part in (schema, name) if part)
        found = connection.run(PG_TABLE, [dotted]).rows
        if not found:
            return None
        ((oid, in_schema, relation, uses_up),) = found
        columns = {
            column: TableColumn(column, kind, collation if exact else collation + NOT_DETERMINISTIC)
            for column, kind, collation, exact in connection.run(PG_COLUMNS, [oid]).rows
        }
        listed = _grouped(connection.run(PG_INDEXES, [oid]).rows)
        indexes = tuple(self._index(index, parts) for index, parts in listed.items())
        primary = next((self._columns(parts) for parts in listed.values() if parts[0][1]), ())
        return FoundTable(in_schema, relation, columns, primary, indexes, uses_up)

    def _columns(self, parts: Sequence[Sequence[Any]]) -> tuple[str, ...]:
        return tuple(part[0] for part in parts if part[0] is not None)

    def _index(self, name: str, parts: Sequence[Sequence[Any]]) -> FoundIndex:
        _, _, valid, immediate, predicate, expression, _ = parts[0]
        flaw = ""
        if expression is not None:
            flaw = f"is on an expression ({expression})"
        elif predicate is not None:
            flaw = f"is partial (WHERE {predicate})"
        elif not valid:
            flaw = "is not valid (its creation failed, or is under way)"
        elif not immediate:
            flaw = "is deferrable, and checked only at the commit"
        elif not all(part[6] for part in parts):
            flaw = "compares by another collation than the column"
        return FoundIndex(name, self._columns(parts), (), flaw)

    def quote(self, name: str) -> str:
        return _double_quoted(name).replace("%", "%%")

    def target(self, index: FoundIndex) -> str:
        return f"ON CONFLICT ({', '.join(map(self.quote, index.columns))}) DO NOTHING"

    def equals(self, column: str, index: FoundIndex) -> str:
        return f"{self.quote(column)} = %s"

    def same_bytes(self, column: str) -> str:
        return f"convert_to({self.quote(column)}::text, 'UTF8') = convert_to(%s::text, 'UTF8')"

    def merged_by(self, column: TableColumn, index: FoundIndex) -> str:
        if column.type == "citext":
            return "type citext"
        return f"collation {column.collation}" if column.collation.endswith(NOT_DETERMINISTIC) else ""

    def encode(self, value: Any, column: TableColumn) -> Any:
        value = _plain_enum(value)
        if column.type in ("json", "jsonb") and value is not None:
            from psycopg.types.json import Json, Jsonb

            return (Jsonb if column.type == "jsonb" else Json)(value)
        return _in_utc(value) if column.type == "timestamp" else value


# -- SQLite --------------------------------------------------------------------------------------

EXPRESSION = -2
OLDEST_SQLITE = (3, 35, 0)  # RETURNING


class SqliteRules:
    mark = "?"
    returns_rows = True
    finds_and_inserts = False

    def find(self, connection: SqlConnection, schema: str, name: str) -> FoundTable | None:
        (version,) = connection.run("SELECT sqlite_version()").rows[0]
        if tuple(map(int, version.split("."))) < OLDEST_SQLITE:
            raise NotDone(f"SQLite {version} is too old; use 3.35 or later.", final=True)
        listed = connection.run("SELECT name, type, pk FROM pragma_table_xinfo(?, ?)", [name, schema or None]).rows
        if not listed:
            return None
        columns = {column: TableColumn(column, kind.upper()) for column, kind, _ in listed}
        keyed = sorted((place, column) for column, _, place in listed if place)
        primary = tuple(column for _, column in keyed)
        indexes = list(self._indexes(connection, schema, name))
        if primary and not any(index.columns == primary for index in indexes):
            indexes.append(FoundIndex("PRIMARY KEY", primary, ("",)))  # it is the row's number, not a text
        folded = {column: by for index in indexes for column, by in zip(index.columns, index.collations, strict=True)}
        columns |= {column: TableColumn(column, columns[column].type, by) for column, by in folded.items()}
        return FoundTable(schema, name, columns, primary, tuple(indexes))

    def _indexes(self, connection: SqlConnection, schema: str, table: str) -> list[FoundIndex]:
        sql = 'SELECT name, partial FROM pragma_index_list(?, ?) WHERE "unique" = 1'
        listed = connection.run(sql, [table, schema or None]).rows
        return [self._index(connection, schema, index, bool(partial)) for index, partial in listed]

    def _index(self, connection: SqlConnection, schema: str, name: str, partial: bool) -> FoundIndex:
        sql = 'SELECT cid, name, coll FROM pragma_index_xinfo(?, ?) WHERE "key" = 1 ORDER BY seqno'
        parts = connection.run(sql, [name, schema or None]).rows
        flaw = "is on an expression" if any(cid == EXPRESSION for cid, _, _ in parts) else ""
        kept = [(column, by) for _, column, by in parts if column is not None]
        return FoundIndex(
            name,
            tuple(column for column, _ in kept),
            tuple(by for _, by in kept),
            flaw or ("is partial (it has a WHERE)" if partial else ""),
        )

    def quote(self, name: str) -> str:
        return _double_quoted(name)

    def target(self, index: FoundIndex) -> str:
        parts = (self.quote(column) + self._compared(column, index) for column in index.columns)
        return f"ON CONFLICT ({', '.join(parts)}) DO NOTHING"

    def _compared(self, column: str, index: FoundIndex) -> str:
        by = index.collations[index.columns.index(column)]
        return f" COLLATE {self.quote(by)}" if by else ""

    def equals(self, column: str, index: FoundIndex) -> str:
        return f"{self.quote(column)} = ?{self._compared(column, index)}"

    def same_bytes(self, column: str) -> str:
        return f"CAST({self.quote(column)} AS BLOB) = CAST(? AS BLOB)"

    def merged_by(self, column: TableColumn, index: FoundIndex) -> str:
        by = index.collations[index.columns.index(column.name)]
        return "" if by.upper() in ("", "BINARY") else f"collation {by}"

    def encode(self, value: Any, column: TableColumn) -> Any:
        value = _plain_enum(value)
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, datetime):
            return datetime_text(value)
        if isinstance(value, date | time):
            return value.isoformat()
        if isinstance(value, Decimal | UUID):
            return str(value)
        return json.dumps(value) if isinstance(value, dict | list) else value


# -- MariaDB and MySQL ---------------------------------------------------------------------------

MY_COLUMNS = """
SELECT column_name, data_type, coalesce(collation_name, ''), extra, coalesce(column_default, '')
FROM information_schema.columns
WHERE table_schema = coalesce(%s, database()) AND table_name = %s ORDER BY ordinal_position"""
MY_INDEXES = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = coalesce(%s, database()) AND table_name = %s AND non_unique = 0
ORDER BY index_name, seq_in_index"""


class MariadbRules:
    mark = "%s"
    finds_and_inserts = False

    def __init__(self, *, returns_rows: bool) -> None:
        self.returns_rows = returns_rows  # MariaDB's INSERT does, MySQL's does not

    def find(self, connection: SqlConnection, schema: str, name: str) -> FoundTable | None:
        self._refuse_truncation(connection)
        where = [schema or None, name]
        listed = connection.run(MY_COLUMNS, where).rows
        if not listed:
            return None
        columns = {column: TableColumn(column, kind.lower(), collation) for column, kind, collation, *_ in listed}
        uses_up = any("auto_increment" in extra.lower() or "(" in default for *_, extra, default in listed)
        grouped = _grouped(connection.run(MY_INDEXES, where).rows)
        indexes = tuple(self._index(index, parts) for index, parts in grouped.items())
        primary = tuple(column for column, _ in grouped.get("PRIMARY", ()))
        return FoundTable(schema, name, columns, primary, indexes, uses_up)

    def _refuse_truncation(self, connection: SqlConnection) -> None:
        ((mode,),) = connection.run("SELECT @@SESSION.sql_mode").rows
        if "STRICT_ALL_TABLES" not in mode and "STRICT_TRANS_TABLES" not in mode:
            raise NotDone(
                "The connection's sql_mode is not strict: a key that is too long would be cut off and merged with "
                "another. Nothing was written. Add STRICT_ALL_TABLES to sql_mode.",
                final=True,
            )

    def _index(self, name: str, parts: Sequence[Sequence[Any]]) -> FoundIndex:
        flaw = ""
        for column, letters in parts:
            if column is None:
                flaw = "is on an expression"
            elif letters is not None:
                flaw = f"covers only the first {letters} characters of {column}"
        return FoundIndex(name, tuple(column for column, _ in parts if column is not None), (), flaw)

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``").replace("%", "%%") + "`"

    def target(self, index: FoundIndex) -> str:
        """None: ON DUPLICATE KEY cannot tell the key's index from another, and IGNORE hides other errors."""
        return ""

    def equals(self, column: str, index: FoundIndex) -> str:
        return f"{self.quote(column)} = %s"

    def same_bytes(self, column: str) -> str:
        return f"CAST(CONVERT({self.quote(column)} USING utf8mb4) AS BINARY) = CAST(%s AS BINARY)"

    def merged_by(self, column: TableColumn, index: FoundIndex) -> str:
        """Only `_bin` collations distinguish every letter. Most of them ignore trailing spaces, which is detected when
        it occurs.
        """
        exact = not column.collation or column.collation.endswith("_bin")
        return "" if exact else f"collation {column.collation}"

    def encode(self, value: Any, column: TableColumn) -> Any:
        value = _in_utc(_plain_enum(value))
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, UUID):
            return str(value)
        return json.dumps(value) if isinstance(value, dict | list) else value


_RULES: dict[SqlDialect, DialectRules] = {"postgresql": PostgresRules(), "sqlite": SqliteRules()}
_MARIADB, _MYSQL = MariadbRules(returns_rows=True), MariadbRules(returns_rows=False)


def rules_for(connection: SqlConnection) -> DialectRules:
    if connection.dialect != "mysql":
        return _RULES[connection.dialect]
    return _MARIADB if "MariaDB" in connection.handle.get_server_info() else _MYSQL
