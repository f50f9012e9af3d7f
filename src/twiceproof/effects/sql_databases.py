"""A user's SQL database, as effects and readers use it: opened from a URL, a function, an engine or a pool.

    with connect(db) as connection:          # connection.dialect, connection.handle
        connection.run("SELECT 1")

Every statement is a transaction of its own. In a longer one, REPEATABLE READ would keep showing the rows as they were
at its first statement, without a row that another process has inserted since. Connections made from a URL are kept and
reused; those from a user's function, engine or pool are given back.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..errors import Misuse, NotDone
from ..operations import block
from ..safe_text import redacted
from ..secret import Env
from ..stores.open import sqlite_file
from ..stores.user_drivers import driver_of, is_connection, is_django
from ..stores.user_transaction import JoinedStore, open_from
from ..threads import at_fork
from .sql_connection import SOURCES, SqlConnection, awaited_source

__all__ = ["SqlDatabase", "connect", "database_of"]


KEPT = 8  # idle connections of one URL
PATIENCE = 600.0  # seconds to wait for an answer of a server: a statement may take as long as a transaction


class SqlDatabase:
    """One database of a user. It keeps idle connections made from a URL, and what has been learnt about its tables."""

    def __init__(self, source: Any) -> None:
        self._source = _referred(source)  # a weak reference: it may be a function that exists for one call only
        self._make = _maker(source)
        self._lock = threading.Lock()
        self._idle: list[SqlConnection] = []
        self._own: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self.tables: dict[Any, Any] = {}  # what was found out about them, by the effects that use them
        at_fork(self, before=SqlDatabase.close_idle, in_child=SqlDatabase._forget)

    @contextlib.contextmanager
    def open(self) -> Iterator[SqlConnection]:
        """Lend a connection on which each statement is a transaction of its own."""
        if self._make is None:
            with self._borrowed() as handle:
                connection = SqlConnection(handle)
                with connection.each_alone():
                    yield connection
            return
        connection = self._taken()
        try:
            yield connection  # opened by us, so that it commits each statement by itself
        finally:
            self._put_away(connection)

    @contextlib.contextmanager
    def lend(self) -> Iterator[Any]:
        """Lend a connection as its maker made it, for a transaction that the borrower opens and ends."""
        if self._make is None:
            with self._borrowed() as handle:
                yield handle
        else:
            with self.open() as connection:
                yield connection.handle

    def _taken(self) -> SqlConnection:
        while self._idle:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is not None and not connection.hung_up:
                return connection
            if connection is not None:
                _close(connection)
        assert self._make is not None  # noqa: S101 - asked before
        connection = SqlConnection(self._make())
        if connection.dialect == "postgresql":  # PyMySQL's is told when it connects; a file is never silent
            connection.patience = PATIENCE
        return connection

    def _put_away(self, connection: SqlConnection) -> None:
        keep = connection.reusable
        with self._lock:
            if keep and len(self._idle) < KEPT:
                self._idle.append(connection)
                return
        _close(connection)

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[Any]:
        """Borrow a connection from a user's function, engine or pool, and give it back."""
        try:
            opened = block(open_from(self._source()))
        except Misuse:
            raise awaited_source() from None
        except Exception as error:
            raise _unreachable(error, "") from error
        try:
            yield opened.connection
        finally:
            opened.close()  # PyMySQL's connections are context managers, too: leaving one closes it

    def is_ledgers(self, store: JoinedStore) -> bool:
        """Whether this is the ledger's own database, with the same user: both can be written in one transaction."""
        known = self._own.get(store)
        if known is None:
            with self.lend() as handle:
                if SqlConnection(handle).dialect == store.joins.dialect:
                    known = block(store.joins.is_own(driver_of(handle)))
            self._own[store] = known = bool(known)
        return known

    def close_idle(self) -> None:
        """Close what is not in use: before a fork, at the end, and when a server was restarted."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            _close(connection)

    def _forget(self) -> None:
        """Start anew in a forked child: a lock that another thread held would never be released here."""
        self._lock = threading.Lock()
        self._idle = []


def _close(connection: SqlConnection) -> None:
    with contextlib.suppress(Exception):
        connection.handle.close()


_by_url: dict[str, SqlDatabase] = {}
_by_source: weakref.WeakKeyDictionary[Any, SqlDatabase] = weakref.WeakKeyDictionary()


def database_of(db: Any) -> SqlDatabase:
    """Return the database for a URL or function: the same object each time, as long as the argument lives."""
    if isinstance(db, Env):
        db = db.values()[0]
    if isinstance(db, SqlDatabase):
        return db
    _refuse_no_source(db)
    known = _by_url if isinstance(db, str) else _by_source
    try:
        found = known.get(db)
        return known.setdefault(db, SqlDatabase(db)) if found is None else found
    except TypeError:  # it has no hash, or no weak reference to it can be made
        return SqlDatabase(db)


def _referred(source: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(source)
    except TypeError:
        return lambda: source


def _refuse_no_source(db: Any) -> None:
    if is_connection(db) and not is_django(db):
        raise Misuse("A database is something that makes connections, not one; write it as a function: lambda: …")
    makes = any(callable(made) for made in (db, getattr(db, "connect", None), getattr(db, "connection", None)))
    if not isinstance(db, str) and not makes and not is_django(db):
        raise Misuse(f"{type(db).__name__} is not a database; give {SOURCES}.")


@atexit.register
def _close_all() -> None:
    """Close them all: the drivers warn about connections that were not closed."""
    for database in list(_by_url.values()):
        database.close_idle()


@contextlib.contextmanager
def connect(db: Any) -> Iterator[SqlConnection]:
    """Lend a connection to a user's database, on which each statement is a transaction of its own.

    Args:
        db: A URL, `env("NAME")` of one, a function that makes a connection, a SQLAlchemy engine, a pool, or Django's
            connection. Awaited ones are refused.
    """
    with database_of(db).open() as connection:
        yield connection


# -- URLs ----------------------------------------------------------------------------------------


def _maker(source: Any) -> Callable[[], Any] | None:
    """Return a function that connects; None if the source makes its connections itself."""
    if not isinstance(source, str):
        return None
    try:
        parts = urlsplit(source)
        port = parts.port
    except ValueError:  # its text may quote the password
        raise Misuse("The database's URL cannot be read; percent-encode special characters in it.") from None
    make = _MAKERS.get(parts.scheme)
    if make is None:
        plain = parts.scheme.partition("+")[0]
        hint = f"leave out the driver and write {plain}://" if plain in _MAKERS else f"give {SOURCES}"
        raise Misuse(f"{parts.scheme[:40] + '://' if parts.scheme else 'This'} is not a database known here; {hint}.")
    return _reporting(make(source, parts, port), source)


def _reporting(dial: Callable[[], Any], url: str) -> Callable[[], Any]:
    def dialled() -> Any:
        try:
            return dial()
        except Misuse:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the driver raises
            raise _unreachable(error, url) from None  # its context may quote the password

    return dialled


def _unreachable(error: Exception, url: str) -> NotDone:
    why = redacted(" ".join(str(error).split()), url)
    return NotDone(f"The database could not be reached ({why}); nothing was written. Check that it runs.")


def _postgres(url: str, parts: SplitResult, port: int | None) -> Callable[[], Any]:
    try:
        import psycopg
    except ImportError:
        raise _extra("psycopg", "postgres") from None
    from ..stores.postgres.engine import connection_parameters
    from ..stores.postgres.schema import split_schema

    parameters = connection_parameters(split_schema(url)[0])
    # Statements are not prepared: a pooler may have another session for the next one.
    return lambda: psycopg.connect(autocommit=True, prepare_threshold=None, **parameters)


def _sqlite(url: str, parts: SplitResult, port: int | None) -> Callable[[], Any]:
    from ..stores.sqlite.connection import open_handle

    path = sqlite_file(url)
    if path is None or str(path) == ":memory:":
        raise Misuse("A SQLite URL has three slashes and a file, such as sqlite:///crm.db; write it so.")

    def dial() -> Any:
        if not path.is_file():  # SQLite would create an empty file
            raise FileNotFoundError(f"there is no file {path}")
        return open_handle(path)

    return dial


# Without it a text that is too long is cut off, and a key with it.
STRICT = "SET SESSION sql_mode = CONCAT_WS(',', NULLIF(@@sql_mode, ''), 'STRICT_ALL_TABLES')"
MYSQL_OPTIONS = ("unix_socket", "ssl_ca")


def _mysql(url: str, parts: SplitResult, port: int | None) -> Callable[[], Any]:
    try:
        from ..stores.mariadb.connection import DriverConnection
    except ImportError:
        raise _extra("PyMySQL", "mariadb") from None
    options: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in MYSQL_OPTIONS:
            raise Misuse(f"In the database's URL, {name}= is not known; there are: {', '.join(MYSQL_OPTIONS)}.")
    if "ssl_ca" in options:
        options |= {"ssl_verify_cert": True, "ssl_verify_identity": True}
    where: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path[1:]),
    }
    waits: dict[str, Any] = {"connect_timeout": 10, "read_timeout": PATIENCE, "write_timeout": PATIENCE}
    session: dict[str, Any] = {"charset": "utf8mb4", "autocommit": True, "init_command": STRICT}
    return lambda: DriverConnection(**where, **options, **waits, **session)


def _extra(package: str, extra: str) -> Misuse:
    return Misuse(f"This database needs {package}, which is not installed; run: pip install 'twiceproof[{extra}]'")


_MAKERS: dict[str, Callable[[str, SplitResult, int | None], Callable[[], Any]]] = {
    "postgresql": _postgres,
    "postgres": _postgres,
    "sqlite": _sqlite,
    "mysql": _mysql,
    "mariadb": _mysql,
}
