"""Sqlite3, psycopg, asyncpg, PyMySQL, SQLAlchemy connections behind one protocol."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from ..errors import Misuse
from ..operations import Inline, Operation, Request

__all__ = [
    "AsyncpgDriver",
    "BlockingDriver",
    "Driver",
    "MaybeAwait",
    "PsycopgDriver",
    "SqlalchemyDriver",
    "Sqlite3Driver",
    "cut",
    "driver_of",
    "in_percent",
    "is_connection",
    "is_django",
    "shut",
]


class MaybeAwait(Request[Any]):
    """Call this. An event loop awaits the answer, if it is one to be awaited."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def block(self) -> Any:
        answer = self._work()
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise Misuse(
                "This connection is one to be awaited; make the function under @app.transaction `async def`, or the "
                "block of app.outbox an `async with`."
            )
        return answer

    async def wait(self) -> Any:
        answer = self._work()
        return await answer if inspect.isawaitable(answer) else answer


class Driver(Protocol):
    """One connection and one transaction on it. `handle` is what the user works with."""

    dialect: str  # "sqlite", "postgresql" or "mysql", which is MariaDB's
    handle: Any

    def begin(self) -> Operation[None]:
        """Open a transaction that only this driver commits. One that is open already is refused."""

    def adopt(self) -> Operation[None]:
        """The user has opened it, and will end it."""

    def rows(self, sql: str, values: Sequence[Any]) -> Operation[Sequence[Sequence[Any]]]:
        """Run one statement. Its marks are $1, $2, …, in order and once each; MariaDB's are %s. Not for SQLite."""

    def raw(self) -> Any:
        """The sqlite3 connection behind it. Only for SQLite."""

    def flush(self) -> Operation[None]:
        """Send what an ORM still keeps back."""

    def commit(self) -> Operation[None]: ...

    def rollback(self) -> Operation[None]: ...

    def drop(self) -> None:
        """Without a message and without waiting: the server takes it for a rollback."""

    def cut(self) -> None:
        """Called on another thread than the one that uses the connection, which then gets an error."""


def shut(descriptor: int) -> None:
    """Shut down a socket that another owner may be waiting on. The owner closes it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as ours:
        ours.shutdown(socket.SHUT_RDWR)


def cut(connection: Any) -> None:
    """Whatever driver it is of: psycopg, asyncpg, sqlite3, or one with a socket of its own."""
    with contextlib.suppress(Exception):
        if hasattr(connection, "pgconn"):
            shut(connection.pgconn.socket)
        elif hasattr(connection, "terminate"):
            connection._loop.call_soon_threadsafe(connection.terminate)  # asyncpg's, which knows no threads
        elif hasattr(connection, "interrupt"):
            connection.interrupt()
        elif hasattr(connection, "_sock"):  # PyMySQL's
            shut(connection._sock.fileno())
        elif hasattr(connection, "fileno"):
            shut(connection.fileno())


@lru_cache(maxsize=64)
def in_percent(sql: str) -> str:
    """The same statement for drivers that mark values with %s."""
    return re.sub(r"\$\d+", "%s", sql)


def _sqlite3(connection: Any) -> Driver:

    return Sqlite3Driver(connection)


def _psycopg(connection: Any) -> Driver:

    return PsycopgDriver(connection)


def _asyncpg(connection: Any) -> Driver:

    return AsyncpgDriver(connection)


def _pymysql(connection: Any) -> Driver:
    from .mariadb.join import PymysqlDriver

    return PymysqlDriver(connection)


def _sqlalchemy(connection: Any) -> Driver:

    return SqlalchemyDriver(connection)


def _django(connection: Any) -> Driver:
    from .django_driver import DjangoDriver

    return DjangoDriver(connection)


# By the package that a connection's class, or one it is made from, comes from, and what such a connection has.
DRIVERS: dict[str, tuple[str, Callable[[Any], Driver]]] = {
    "sqlite3": ("executescript", _sqlite3),
    "psycopg": ("pgconn", _psycopg),
    "asyncpg": ("is_in_transaction", _asyncpg),
    "pymysql": ("server_status", _pymysql),
    "sqlalchemy": ("begin_nested", _sqlalchemy),
    "django": ("in_atomic_block", _django),
}


def _found(connection: Any) -> Callable[[Any], Driver] | None:
    packages = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    for package in packages:
        mark, make = DRIVERS.get(package, ("", None))
        if make is not None and hasattr(connection, mark):
            return make
    return None


def is_connection(thing: Any) -> bool:
    return _found(thing) is not None


def is_django(thing: Any) -> bool:
    return _found(thing) is _django


def driver_of(connection: Any) -> Driver:
    make = _found(connection)
    if make is None:
        raise Misuse(
            f"{type(connection).__module__}.{type(connection).__qualname__} is not a connection that the ledger can be "
            "written on; give one of sqlite3, psycopg 3, asyncpg, PyMySQL, SQLAlchemy (Connection or Session), or "
            "Django."
        )
    return make(connection)


class AsyncpgDriver:
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self._transaction: Any = None

    def begin(self) -> Operation[None]:
        if self.handle.is_in_transaction():
            raise Misuse("The connection is already in a transaction; let connect= make a fresh one.")
        transaction = self.handle.transaction()
        yield from MaybeAwait(transaction.start)
        self._transaction = transaction

    def adopt(self) -> Operation[None]:
        if not self.handle.is_in_transaction():
            raise Misuse("The connection is in no transaction; open one with `async with connection.transaction():`.")
        yield from ()

    def rows(self, sql: str, values: Sequence[Any]) -> Operation[Sequence[Sequence[Any]]]:
        found: Sequence[Sequence[Any]] = yield from MaybeAwait(lambda: self.handle.fetch(sql, *values))
        return found

    def raw(self) -> Any:
        raise NotImplementedError

    def flush(self) -> Operation[None]:
        yield from ()

    def commit(self) -> Operation[None]:
        transaction, self._transaction = self._transaction, None
        yield from MaybeAwait(transaction.commit)

    def rollback(self) -> Operation[None]:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            yield from MaybeAwait(transaction.rollback)

    def cut(self) -> None:
        cut(self.handle)

    def drop(self) -> None:
        with contextlib.suppress(Exception):
            self.handle.terminate()


IDLE = 0


class _Back(Exception):
    """Tells psycopg's transaction block to roll back."""


class PsycopgDriver:
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self._transaction: Any = None
        self._awaited = hasattr(connection, "__aenter__")

    def begin(self) -> Operation[None]:
        if self.handle.info.transaction_status != IDLE:
            raise Misuse("The connection is already in a transaction; let connect= make a fresh one.")
        transaction = self.handle.transaction()
        yield from MaybeAwait(transaction.__aenter__ if self._awaited else transaction.__enter__)
        self._transaction = transaction

    def adopt(self) -> Operation[None]:
        yield from ()

    def rows(self, sql: str, values: Sequence[Any]) -> Operation[Sequence[Sequence[Any]]]:
        cursor = self.handle.cursor(row_factory=_plain)  # the connection's own may make anything of a row
        yield from MaybeAwait(lambda: cursor.execute(in_percent(sql).encode(), values))
        found: Sequence[Sequence[Any]] = yield from MaybeAwait(cursor.fetchall)
        return found

    def raw(self) -> Any:
        raise NotImplementedError

    def flush(self) -> Operation[None]:
        yield from ()

    def commit(self) -> Operation[None]:
        yield from self._end(None)

    def rollback(self) -> Operation[None]:
        if self._transaction is not None:
            yield from self._end(_Back())

    def _end(self, error: _Back | None) -> Operation[None]:
        transaction, self._transaction = self._transaction, None
        leave = transaction.__aexit__ if self._awaited else transaction.__exit__
        yield from MaybeAwait(lambda: leave(type(error) if error else None, error, None))

    def cut(self) -> None:
        cut(self.handle)

    def drop(self) -> None:
        with contextlib.suppress(Exception):
            self.handle.pgconn.finish()


def _plain(cursor: Any) -> Any:
    return tuple


SQLITE = "pysqlite"


class SqlalchemyDriver:
    """Bypasses SQLAlchemy's own SQL, with the placeholders of the driver underneath."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._session = hasattr(handle, "flush")
        self._connection: Any = None if self._session else handle
        self._ours = False
        dialect = self._bind().dialect
        self.dialect = "mysql" if dialect.name == "mariadb" else dialect.name
        self._percent = dialect.paramstyle in ("format", "pyformat")
        if dialect.name == "sqlite" and dialect.driver != SQLITE:
            raise Misuse(
                f"SQLAlchemy's {dialect.driver} cannot be joined; use the driver pysqlite, with a plain `def`."
            )

    def _bind(self) -> Any:
        return self.handle.get_bind() if self._session else self.handle

    def begin(self) -> Operation[None]:
        if self.handle.in_transaction():
            raise Misuse("The connection is already in a transaction; let connect= make a fresh one.")
        if self._session:
            self._connection = yield from MaybeAwait(self.handle.connection)
        else:
            yield from MaybeAwait(self.handle.begin)
        self._refuse_commits()

    def adopt(self) -> Operation[None]:
        if not self.handle.in_transaction():
            raise Misuse("The connection is in no transaction; open one with connection.begin().")
        if self._session:
            self._connection = yield from MaybeAwait(self.handle.connection)

    def _sync(self) -> Any:
        return getattr(self._connection, "sync_connection", self._connection)

    def _refuse_commits(self) -> None:
        """A commit in the user's function would tear its work from the ledger's entry."""
        from sqlalchemy import event

        def refuse(_: Any) -> None:
            if not self._ours:
                raise Misuse(
                    "The transaction of a function under @app.transaction is committed with its ledger entry, when "
                    "it returns; leave out commit()."
                )

        event.listen(self._sync(), "commit", refuse)

    def rows(self, sql: str, values: Sequence[Any]) -> Operation[Sequence[Sequence[Any]]]:
        words = in_percent(sql) if self._percent else sql
        result = yield from MaybeAwait(lambda: self._connection.exec_driver_sql(words, tuple(values)))
        found: Sequence[Sequence[Any]] = result.fetchall() if result.returns_rows else ()
        return found

    def raw(self) -> Any:
        return self._sync().connection.driver_connection

    def flush(self) -> Operation[None]:
        if self._session:
            yield from MaybeAwait(self.handle.flush)

    def commit(self) -> Operation[None]:
        self._ours = True
        yield from MaybeAwait(self.handle.commit)

    def rollback(self) -> Operation[None]:
        yield from MaybeAwait(self.handle.rollback)

    def cut(self) -> None:
        with contextlib.suppress(Exception):
            if not self._sync().invalidated:
                cut(self.raw())

    def drop(self) -> None:
        """Not back into the pool: its transaction may be open still."""
        with contextlib.suppress(Exception):
            if not self._sync().invalidated:  # or asking for its connection would open another
                self._sync().connection.invalidate()


class BlockingDriver:
    """The methods of a driver that are the same for blocking connections: sqlite3, PyMySQL."""

    def __init__(self, connection: Any) -> None:
        self.handle = connection

    def raw(self) -> Any:
        return self.handle

    def flush(self) -> Operation[None]:
        yield from ()

    def commit(self) -> Operation[None]:
        yield from Inline(self.handle.commit)

    def rollback(self) -> Operation[None]:
        yield from Inline(self.handle.rollback)

    def cut(self) -> None:
        cut(self.handle)


class Sqlite3Driver(BlockingDriver):
    """`begin` only looks: the write lock is the dialect's to wait for."""

    dialect = "sqlite"

    def begin(self) -> Operation[None]:
        if self.handle.in_transaction and getattr(self.handle, "autocommit", None) is not False:
            raise Misuse("The connection is already in a transaction; let connect= make a fresh one.")
        yield from ()

    def adopt(self) -> Operation[None]:
        if not self.handle.in_transaction:
            raise Misuse("The connection is in no transaction; run BEGIN IMMEDIATE on it first.")
        yield from ()

    def rows(self, sql: str, values: Sequence[Any]) -> Operation[Sequence[Sequence[Any]]]:
        raise NotImplementedError

    def drop(self) -> None:
        with contextlib.suppress(Exception):
            self.handle.close()
