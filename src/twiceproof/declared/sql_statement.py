"""SQL of a file: one statement with parameters, as an effect. `SELECT id FROM invoices WHERE reference = :reference`.

Values are never put into the text of a statement: they always reach the database as parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ..effects.base import Absent, Happened, Look, Unknown
from ..effects.repeat import NEVER, SAFE, Declared
from ..effects.sql_connection import SqlDialect, SqlError
from ..effects.sql_databases import database_of
from ..errors import NotDone, OutcomeUnknown, TwiceproofError
from .expression import ExpressionError

__all__ = ["SqlStatement", "StatementEffect", "look_by_query", "read_statement"]


# Texts, names, comments and casts, in which a colon begins no parameter.
_PIECE = re.compile(
    r"""(?P<as_it_is>'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|--[^\n]*|/\*.*?\*/|::|[^'"`:\-/]+|[-/])"""
    r"""|:(?P<name>[A-Za-z_]\w*)|(?P<stray>.)""",
    re.DOTALL,
)
_ACTS = re.compile(
    r"\b(insert|update|delete|merge|replace|truncate|drop|alter|create|grant|call|do|copy|into|nextval|setval)\b", re.I
)
_READS = re.compile(r"\s*(select|with|values|show|table)\b", re.I)


class SqlStatement(Struct, frozen=True):
    """A statement in pieces: texts as they are, and the names of parameters."""

    pieces: tuple[tuple[bool, str], ...]  # whether it is a parameter; its text or name

    @property
    def names(self) -> list[str]:
        """The parameters, each once."""
        return list(dict.fromkeys(text for is_name, text in self.pieces if is_name))

    @property
    def only_reads(self) -> bool:
        """Whether it looks like a query: it begins like one, and contains no keyword that writes."""
        words = "".join(text for is_name, text in self.pieces if not is_name and text[:1] not in "'\"`-/")
        return _READS.match(words) is not None and _ACTS.search(words) is None

    def bound(self, dialect: SqlDialect, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """Return the statement with the driver's placeholders, and the parameters in their order."""
        mark = "?" if dialect == "sqlite" else "%s"
        given = [_parameter(values[text]) for is_name, text in self.pieces if is_name]
        plain = dialect == "sqlite" or not given  # without values, % is an ordinary character for the drivers
        text = "".join(mark if is_name else text if plain else text.replace("%", "%%") for is_name, text in self.pieces)
        return text, given


def read_statement(text: str) -> SqlStatement:
    """Parse a statement. Raises ExpressionError, with the column."""
    if "{" in text:
        raise ExpressionError("SQL takes no fields; write :name, and with: {name: =order.id}", text.index("{"))
    pieces: list[tuple[bool, str]] = []
    for piece in _PIECE.finditer(text):
        if piece["stray"] in ("'", '"', "`"):
            raise ExpressionError(f"a {piece['stray']} is not closed", piece.start())
        pieces.append((True, piece["name"]) if piece["name"] else (False, piece[0]))
    return SqlStatement(tuple(pieces))


def _parameter(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value


class StatementEffect(Struct, frozen=True, eq=False):
    """A query, whose rows are its result; or a statement that writes, whose result counts the rows."""

    db: Any
    connection: str
    statement: SqlStatement
    values: dict[str, Any]
    reads: bool

    @property
    def name(self) -> str:
        return f"{'query' if self.reads else 'run'} {self.connection}"

    @property
    def repeat(self) -> Declared:
        return SAFE if self.reads else NEVER

    @property
    def result_type(self) -> Any:
        return Any

    def describe(self) -> dict[str, Any]:
        text = "".join(f":{text}" if is_name else text for is_name, text in self.statement.pieces)
        return {"sql": text, "database": self.connection, "values": self.values}

    def perform(self, effect_key: str) -> Any:
        return _run(self.db, self.statement, self.values, reads=self.reads)

    def look(self, effect_key: str) -> Look:
        return Unknown("a statement leaves nothing to look for; declare check: {sql: …, query: …}")


def _run(db: Any, statement: SqlStatement, values: Mapping[str, Any], *, reads: bool) -> Any:
    database = database_of(db)
    try:
        with database.open() as connection:
            text, given = statement.bound(connection.dialect, values)
            answered = connection.run(text, given)
    except SqlError as error:
        raise _meant(error, reads=reads) from error
    rows = [dict(zip(answered.columns, map(_plain, row), strict=True)) for row in answered.rows]
    return rows if reads else {"affected": answered.affected, "rows": rows}


def _meant(error: SqlError, *, reads: bool) -> TwiceproofError:
    if error.meaning == "lost" and not reads:
        return OutcomeUnknown(f"the database gave no answer ({error})")
    why = f"The database refused the statement ({error}); nothing was written."
    if error.meaning in ("refused", "unique"):
        return NotDone(why, final=True)
    return NotDone(why, retry_after=1.0 if error.meaning == "passing" else None)


def _plain(value: Any) -> Any:
    """Return a value as JSON: decimals, dates and UUIDs become texts, bytes base64."""
    return msgspec.to_builtins(value)


def look_by_query(db: Any, statement: SqlStatement, values: Mapping[str, Any]) -> Look:
    """No row: it did not happen. Otherwise the first row is what was found."""
    try:
        rows = _run(db, statement, values, reads=True)
    except TwiceproofError as error:
        return Unknown(str(error), failed=True)
    return Happened(rows[0]) if rows else Absent()
