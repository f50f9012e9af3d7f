"""SqlConnection: a connection of sqlite3, psycopg or PyMySQL behind one interface; what their errors mean."""

from __future__ import annotations

import contextlib
import re
import select
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from ..errors import Misuse
from ..stores.deadlines import deadlines
from ..stores.user_drivers import cut, is_django

__all__ = ["SOURCES", "Answered", "Meaning", "SqlConnection", "SqlDialect", "SqlError", "awaited_source"]


SqlDialect = Literal["postgresql", "sqlite", "mysql"]

SOURCES = (
    "a URL (postgresql://, sqlite:///, mariadb:// or mysql://), a function that makes a connection of sqlite3, "
    "psycopg 3 or PyMySQL, a SQLAlchemy engine, a pool of psycopg's, or Django's connection"
)
# By the package that the class of a connection, or one it is made from, comes from.
DIALECTS: dict[str, SqlDialect] = {"sqlite3": "sqlite", "psycopg": "postgresql", "pymysql": "mysql"}


class Answered(NamedTuple):
    """A statement's answer. `affected` is the driver's count of rows written."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    affected: int


class SqlConnection:
    """One connection: `handle` is the driver's own (sqlite3, psycopg or PyMySQL), unwrapped.

    With `patience`, one that gives no answer for so many seconds is cut: the driver by itself waits for ever.
    """

    __slots__ = ("dialect", "handle", "patience")

    def __init__(self, handle: Any) -> None:
        self.handle = _driver_connection(handle)
        self.dialect = _dialect_of(self.handle)
        self.patience: float | None = None

    def run(self, sql: str, values: Sequence[Any] = ()) -> Answered:
        """Run one statement, with the driver's placeholders (`?` or `%s`); rows are plain tuples. Raises `SqlError`."""
        try:
            if self.dialect == "sqlite":
                with self._plain_texts():
                    return self._answer(sql, values)
            if self.patience is None:
                return self._answer(sql, values)
            with deadlines.after((self.patience, partial(cut, self.handle))):
                return self._answer(sql, values)
        except Exception as error:
            raise SqlError(error, self.dialect) from error

    def _answer(self, sql: str, values: Sequence[Any]) -> Answered:
        cursor = self._cursor()
        try:
            cursor.execute(sql, *([tuple(values)] if values else []))  # without values, % is an ordinary character
            described = cursor.description  # psycopg makes it anew each time
            if described is None:
                return Answered((), [], cursor.rowcount)
            return Answered(tuple([column[0] for column in described]), list(cursor.fetchall()), cursor.rowcount)
        finally:
            cursor.close()

    def _cursor(self) -> Any:
        """Return a cursor that yields plain tuples, whatever row type the connection is set to."""
        if self.dialect == "postgresql":
            from psycopg.rows import tuple_row

            return self.handle.cursor(row_factory=tuple_row)
        if self.dialect == "mysql":
            from pymysql.cursors import Cursor

            return self.handle.cursor(Cursor)
        cursor = self.handle.cursor()
        cursor.row_factory = None
        return cursor

    @contextlib.contextmanager
    def _plain_texts(self) -> Iterator[None]:
        kept, self.handle.text_factory = self.handle.text_factory, str
        try:
            yield
        finally:
            self.handle.text_factory = kept

    @contextlib.contextmanager
    def each_alone(self) -> Iterator[None]:
        """Commit each statement by itself; afterwards the connection has its previous mode again."""
        if self._in_transaction():
            raise Misuse(
                "The connection is already in a transaction, which others commit or roll back; let the function make a "
                "fresh one, or call this outside of the transaction."
            )
        restore = _AUTOCOMMIT[self.dialect](self.handle)
        try:
            yield
        finally:
            if restore is not None and not self.broken:
                with contextlib.suppress(Exception):  # its server is gone
                    restore()

    def _in_transaction(self) -> bool:
        if self.dialect == "sqlite":
            return self.handle.in_transaction and getattr(self.handle, "autocommit", None) is not False
        if self.dialect == "postgresql":
            return bool(self.handle.pgconn.transaction_status != 0)
        return bool(self.handle.server_status & 1)

    @property
    def broken(self) -> bool:
        """Whether it was closed: by us, by others, or by the server, as far as the driver knows."""
        if self.dialect == "sqlite":
            try:
                self.handle.total_changes  # noqa: B018 - raises if it is closed
            except Exception:  # noqa: BLE001 - sqlite3.ProgrammingError
                return True
            return False
        return bool(self.handle.closed if self.dialect == "postgresql" else not self.handle.open)

    @property
    def hung_up(self) -> bool:
        """Whether the server has closed it while it was idle, judging by what its socket has received. Only for
        PostgreSQL.
        """
        if self.dialect != "postgresql":
            return False
        poll = select.poll()  # `select.select` fails in a process with a thousand open files
        poll.register(self.handle.pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def reusable(self) -> bool:
        return not self.broken and not self._in_transaction()


def _by_attribute(handle: Any) -> Callable[[], None] | None:
    """psycopg's, and sqlite3's from Python 3.12 on."""
    if handle.autocommit is True:
        return None
    kept, handle.autocommit = handle.autocommit, True
    return lambda: setattr(handle, "autocommit", kept)


def _by_level(handle: Any) -> Callable[[], None] | None:
    """sqlite3's older mode, in which it begins transactions by itself."""
    if getattr(handle, "autocommit", None) is False:
        return _by_attribute(handle)
    if handle.isolation_level is None:
        return None
    kept, handle.isolation_level = handle.isolation_level, None
    return lambda: setattr(handle, "isolation_level", kept)


def _by_statement(handle: Any) -> Callable[[], None] | None:
    """PyMySQL's."""
    if handle.get_autocommit():
        return None
    handle.autocommit(True)
    return lambda: handle.autocommit(False)


_AUTOCOMMIT: dict[SqlDialect, Callable[[Any], Callable[[], None] | None]] = {
    "postgresql": _by_attribute,
    "sqlite": _by_level,
    "mysql": _by_statement,
}


def _package(thing: Any) -> set[str]:
    return {kind.__module__.partition(".")[0] for kind in type(thing).__mro__}


def _driver_connection(handle: Any) -> Any:
    """The driver's connection below a Session or Connection of SQLAlchemy, or below Django's."""
    if hasattr(handle, "__aenter__") or "asyncpg" in _package(handle):
        raise awaited_source()
    if "sqlalchemy" in _package(handle):
        connection = handle.connection() if hasattr(handle, "flush") else handle
        return connection.connection.driver_connection
    if is_django(handle):
        handle.ensure_connection()
        return handle.connection
    return handle


def _dialect_of(handle: Any) -> SqlDialect:
    for package in _package(handle):
        if package in DIALECTS:
            return DIALECTS[package]
    kind = f"{type(handle).__module__}.{type(handle).__qualname__}"
    raise Misuse(f"{kind} is not a connection that effects can use; give {SOURCES}.")


def awaited_source() -> Misuse:
    return Misuse(
        "This database is one to be awaited, and effects use it from a thread of their own; give a blocking one "
        "(psycopg, or SQLAlchemy's create_engine)."
    )


# -- errors --------------------------------------------------------------------------------------

# "passing": nothing was written, and the same again may well work. "unique": a unique index refused it. "refused": the
# server refused it, and would again. "undone": nothing was written. "lost": no answer came.
Meaning = Literal["passing", "unique", "refused", "undone", "lost"]


class SqlError(Exception):
    """A driver's error, with what it means. `index` is the unique index that refused, where the driver names it."""

    def __init__(self, error: Exception, dialect: SqlDialect) -> None:
        super().__init__(" ".join(_text(error).split()))
        self.meaning, self.index = _MEANINGS[dialect](error)


def _text(error: Exception) -> str:
    """PostgreSQL's first line: its details may hold a row's contents."""
    return getattr(getattr(error, "diag", None), "message_primary", None) or str(error)


PASSING_STATES = ("40001", "40P01", "55P03")
LOST_STATES = ("08", "57P", "40003")
REFUSED_STATES = ("0A", "22", "23", "42", "44", "P0")
UNIQUE_STATE, PARENT_STATE = "23505", "23503"  # a missing parent row may arrive later


def _of_postgres(error: Any) -> tuple[Meaning, str]:
    state = getattr(error, "sqlstate", None)
    if state is None:
        # Raised by psycopg itself, about a value that it cannot send; or the connection is gone.
        return ("lost" if type(error).__name__ in ("OperationalError", "InterfaceError") else "refused"), ""
    if state == UNIQUE_STATE:
        return "unique", error.diag.constraint_name or ""
    if state.startswith(LOST_STATES):
        return "lost", ""
    if state in PASSING_STATES:
        return "passing", ""
    return ("refused" if state.startswith(REFUSED_STATES) and state != PARENT_STATE else "undone"), ""


BUSY, LOCKED, IO_ERROR = 5, 6, 10
REFUSED_CODES = (1, 18, 19, 20, 25)  # no such table, too big, constraint, datatype mismatch, range
UNIQUE_CODES, PARENT_CODE = (2067, 1555, 2579), 787


def _of_sqlite(error: Any) -> tuple[Meaning, str]:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by the module itself, about a value or a closed connection
        return "refused", ""
    if code in UNIQUE_CODES:
        return "unique", str(error).partition(": ")[2]
    if code & 0xFF in (BUSY, LOCKED):
        return "passing", ""
    if code & 0xFF == IO_ERROR:
        return "lost", ""
    return ("refused" if code & 0xFF in REFUSED_CODES and code != PARENT_CODE else "undone"), ""


# Deadlock, lock wait timeout, record has changed since last read.
PASSING_NUMBERS = (1213, 1205, 1020)
LOST_NUMBERS = (0, 1053, 1927, 2006, 2013, 2014, 2055)
UNIQUE_NUMBERS, PARENT_NUMBERS = (1062, 1586), (1216, 1452)
REFUSED_NUMBERS = (1054, 1142, 1143, 1146, 1265, 1292, 1364, 1366, 3819, 4025)
DUPLICATE_KEY = re.compile(r"for key '(?:[^']*\.)?([^']*)'$")


def _of_mysql(error: Any) -> tuple[Meaning, str]:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else None
    if number in UNIQUE_NUMBERS:
        found = DUPLICATE_KEY.search(str(error.args[-1]))
        return "unique", found[1] if found else ""
    if number in LOST_NUMBERS:
        return "lost", ""
    if number in PASSING_NUMBERS:
        return "passing", ""
    wrong = type(error).__name__ in ("IntegrityError", "DataError", "ProgrammingError", "NotSupportedError")
    final = wrong or number is None or number in REFUSED_NUMBERS
    return ("refused" if final and number not in PARENT_NUMBERS else "undone"), ""


_MEANINGS: dict[SqlDialect, Callable[[Any], tuple[Meaning, str]]] = {
    "postgresql": _of_postgres,
    "sqlite": _of_sqlite,
    "mysql": _of_mysql,
}
