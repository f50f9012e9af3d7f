"""What a join needs of a user's connection, and which driver speaks to which. Imports none of their packages."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...drive import Operation
from ...errors import Misuse

__all__ = ["Driver", "cut", "driver_of", "in_percent", "is_connection", "is_django", "shut"]


class Driver(Protocol):
    """One connection and one transaction on it. `handle` is what the user works with."""

    dialect: str  # "sqlite" or "postgresql"
    handle: Any

    def begin(self) -> Operation[None]:
        """Open a transaction that nobody but us commits. One that is open already is refused."""

    def adopt(self) -> Operation[None]:
        """The user has opened it, and will end it."""

    def rows(self, sql: str, values: Sequence[str | None]) -> Operation[Sequence[Sequence[Any]]]:
        """Run one statement. Its marks are $1, $2, …, in order and once each. Not for SQLite."""

    def raw(self) -> Any:
        """The sqlite3 connection behind it. Only for SQLite."""

    def flush(self) -> Operation[None]:
        """Send what an ORM still keeps back."""

    def commit(self) -> Operation[None]: ...

    def rollback(self) -> Operation[None]: ...

    def drop(self) -> None:
        """Without a word and without waiting: the server takes it for a rollback."""

    def cut(self) -> None:
        """Called on another thread than the one that uses the connection: whoever waits on it hears an error."""


def shut(descriptor: int) -> None:
    """Ends a socket that somebody else owns and may be waiting on. It stays theirs to close."""
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
        elif hasattr(connection, "fileno"):
            shut(connection.fileno())


def in_percent(sql: str) -> str:
    """The same statement for drivers that mark values with %s."""
    return re.sub(r"\$\d+", "%s", sql)


def _sqlite3(connection: Any) -> Driver:
    from .sqlite3_driver import Sqlite3Driver

    return Sqlite3Driver(connection)


def _psycopg(connection: Any) -> Driver:
    from .psycopg_driver import PsycopgDriver

    return PsycopgDriver(connection)


def _asyncpg(connection: Any) -> Driver:
    from .asyncpg_driver import AsyncpgDriver

    return AsyncpgDriver(connection)


def _sqlalchemy(connection: Any) -> Driver:
    from .sqlalchemy_driver import SqlalchemyDriver

    return SqlalchemyDriver(connection)


def _django(connection: Any) -> Driver:
    from .django_driver import DjangoDriver

    return DjangoDriver(connection)


# By the package that a connection's class, or one it is made from, comes from, and what such a connection has.
DRIVERS: dict[str, tuple[str, Callable[[Any], Driver]]] = {
    "sqlite3": ("executescript", _sqlite3),
    "psycopg": ("pgconn", _psycopg),
    "asyncpg": ("is_in_transaction", _asyncpg),
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
            "written on; give one of sqlite3, psycopg 3, asyncpg, SQLAlchemy (Connection or Session), or Django."
        )
    return make(connection)
