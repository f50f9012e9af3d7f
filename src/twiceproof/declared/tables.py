"""Asks the databases of a file whether its rows have the unique index that makes a repeat harmless.

`flows lint` asks the draft side of each connection, and the gate of a promotion the live one. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..effects.sql_connection import SqlError
from ..effects.sql_databases import database_of
from ..effects.sql_rows import RowRequest, RowWriter
from ..errors import Misuse, NotDone
from .connections import Connection, secret_or_text
from .model import RowSpec, SqlSpec
from .nodes import LintProblem, Path
from .reading import ReadFlow, walk

__all__ = ["ask_database", "index_problems"]


ROW_VERBS = ("upsert", "insert_once", "find_or_create")


def index_problems(read: ReadFlow, sides: Mapping[str, Connection]) -> list[LintProblem]:
    """Return what is wrong with the tables that a file writes rows to. That a database cannot be asked is a warning."""
    found: list[LintProblem] = []
    rows = [*_rows(read)]
    used = {connection for _, connection, _ in rows}
    silent = {name: ask_database(sides[name]) for name in used & sides.keys() if sides[name].sql is not None}
    for path, connection, row in rows:
        place = read.document.place((*path, "by"))
        if silent.get(connection):
            told = f"{connection} cannot be asked for its unique indexes: {silent[connection]}"
            found.append(LintProblem("unique-index", place, told, level="warning"))
        elif connection in silent and (wrong := _wrong_table(str(sides[connection].sql), row)):
            told, _, instead = wrong.removesuffix(";").partition(" Create it: ")
            found.append(LintProblem("unique-index", place, told.replace(" Nothing was written.", ""), instead))
    return found


def ask_database(side: Connection) -> str:
    """Return why a database cannot be reached; "" if it can."""
    try:
        with database_of(secret_or_text(str(side.sql))).open():
            return ""
    except (Misuse, NotDone, SqlError, OSError) as error:
        return str(error).partition(";")[0]


def _rows(read: ReadFlow) -> Iterator[tuple[Path, str, RowSpec]]:
    for step in walk((*read.steps, *read.on_error)):
        if isinstance(step.spec, SqlSpec):
            for verb in ROW_VERBS:
                row = getattr(step.spec, verb)
                if row is not None:
                    yield (*step.path, verb), step.spec.sql, row


def _wrong_table(reference: str, row: RowSpec) -> str:
    """Look at the table as the step does before its first row, and return what is wrong with it."""
    database = database_of(secret_or_text(reference))
    values = {name: 0 for name in row.row if name not in row.by}
    request = RowRequest(row.table, dict.fromkeys(row.by, 0), values)
    try:
        with database.open() as connection:
            RowWriter(database, connection, request, "", joined=False)
    except (Misuse, NotDone, SqlError) as error:
        return str(error)
    return ""
