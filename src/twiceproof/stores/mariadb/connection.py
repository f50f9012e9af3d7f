"""One connection by PyMySQL; ends lost sessions; maps server errors to ours.

Several statements go in one packet and are answered together, so that a whole transaction is one round trip. The server
stops at the first statement that it refuses; the earlier ones are rolled back at once, because the next BEGIN would
commit them.

A lost session may still have our last commit before it. Sent again on a new connection, that commit could land, be
followed by a newer one, and then be overwritten when the old session wakes up. So the old session is killed before
anything is sent again.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pymysql
from msgspec import Struct
from pymysql.converters import escape_string
from pymysql.err import MySQLError, OperationalError  # not pymysql.err.…: Django with PyMySQL as MySQLdb replaces that

from ...clock import Clock, jitter
from ...errors import BadWrite, SchemaMismatch, StoreError, StoreFull, StoreUnavailable, StoreUnsafe
from ...threads import reraise_signal_exception
from ..base import Disconnected
from ..user_drivers import shut
from .rows import Row, Statement

__all__ = [
    "HELD",
    "MISFITTING",
    "TRANSIENT",
    "DriverConnection",
    "MariadbConnection",
    "MariadbRefusal",
    "error_code",
    "named",
]

Rows = Sequence[Row]

# No answer, or the session is over; also a Galera node that is cut off, or fails at COMMIT without saying how it ended.
LOST = (0, 1053, 1080, 1152, 1156, 1158, 1159, 1160, 1161, 1180, 1927, 2003, 2006, 2013, 2014, 2055)
NOT_READY = 1047  # a Galera node outside of the primary component: the statement was not executed
DEADLOCK, HELD, CHANGED = 1213, 1205, 1020
TRANSIENT = (DEADLOCK, CHANGED)  # the whole transaction was rolled back, at any statement including COMMIT
DUPLICATE, SIGNALLED = 1062, 1644
MISFITTING = (DUPLICATE, SIGNALLED)
# On Galera, statements behind the COMMIT look whether it has landed. Where they fail, for example because the node was
# just cut off, it may have. These errors come from statements before it.
BEFORE_COMMIT = (*TRANSIENT, *MISFITTING)
FULL = (3, 1021, 1026, 1114, 1878)
READ_ONLY = (1290, 1792, 1836)
NOT_ALLOWED = (1044, 1142, 1143, 1227, 1370)
MISSING = (1049, 1054, 1146, 4091, 4092)
INTERRUPTED = (1317, 1969, 3024)
TOO_LARGE = 1153

SESSION = (
    "SET SESSION autocommit = 1, tx_isolation = 'READ-COMMITTED', innodb_lock_wait_timeout = %s,"
    " lock_wait_timeout = 10, time_zone = '+00:00',"
    " sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO',"
    " max_statement_time = 0, character_set_client = utf8mb4, character_set_connection = utf8mb4,"
    " character_set_results = utf8mb4"
)
# Since when the server runs tells a connection id from the same one after a restart.
WHO = (
    "SELECT CONNECTION_ID(), @@max_allowed_packet, CONCAT(@@hostname, ':', @@port),"
    " UNIX_TIMESTAMP() - (SELECT CAST(variable_value AS INT) FROM information_schema.global_status"
    " WHERE variable_name = 'UPTIME')"
)
# Seconds to wait for a row that another session has locked. A group of commits waits for none, so that its other spaces
# go on. What is asked beside them is short, such as the note about the server that each process renews when it opens.
LOCK_PATIENCE = 5
SAME_START = 3  # seconds by which two readings of a server's start may differ
PAUSE = 0.005
GHOST_PATIENCE = 2.0  # seconds for a session to end; the caller and everyone behind it wait
TRANSIENT_TRIES = 20
GRACE = 1.0  # seconds that closing waits for a question under way
COMMIT = "COMMIT"
IN_TRANSACTION = 1  # in the status that the server sends with each answer
ROOM = 1_024  # bytes of a packet that are not available to us


class DriverConnection(pymysql.Connection):
    """PyMySQL's connection, without reading the certificates of the system again for each: 16 ms of processor time.

    Without ssl_ca in the URL the server is not verified: TLS is used if it offers that, and no certificate is compared.
    """

    _unverified: Any = None

    def _create_ssl_ctx(self, options: Mapping[str, Any]) -> Any:
        if options or DriverConnection._unverified is None:
            made = super()._create_ssl_ctx(options)  # type: ignore[misc]
            if options:
                return made
            DriverConnection._unverified = made
        return DriverConnection._unverified


class MariadbRefusal(Exception):
    """The server answered with an error. Nothing of the packet was committed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_code(error: BaseException) -> int | None:
    """Return the server's or the driver's error number. None: not an error of PyMySQL."""
    if not isinstance(error, MySQLError):
        return None
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def named(error: MariadbRefusal) -> StoreError:
    """Return our error for the caller."""
    code, text = error.code, str(error)
    if code in FULL:
        return StoreFull(f"The database's disk is full ({text}); nothing was written. Free some space.")
    if code in READ_ONLY:
        return StoreUnsafe(
            "The server takes no writes: it is a replica, or set to read_only. Point the URL at the primary.",
            findings=[],
        )
    if code in INTERRUPTED:
        return StoreUnavailable(
            f"The server cancelled the statement ({text}); nothing was written. Raise max_statement_time.", unsure=False
        )
    if code == HELD or code in TRANSIENT:
        return StoreUnavailable(
            f"Another session holds a lock for too long ({text}); nothing was written. Look for a long-running "
            "transaction in the database, or a stopped process, then try again.",
            unsure=False,
        )
    return _ours_to_fix(code, text)


def _ours_to_fix(code: int, text: str) -> StoreError:
    if code == TOO_LARGE:
        return BadWrite(f"The server takes no packet as large as this ({text}); raise max_allowed_packet.")
    if code in NOT_ALLOWED:
        return StoreError(
            f"The database user lacks a right ({text}); grant it what docs/reference/stores.md lists under Rights, or "
            "open the store once with a user that has it."
        )
    if code in MISSING:
        return SchemaMismatch(f"A table or sequence of twiceproof is missing ({text}); open the store again.")
    return StoreError(f"MariaDB refused: {text} ({code}). Please report this as a bug in twiceproof.")


class MariadbSession(Struct, frozen=True):
    """What identifies our session to the server."""

    number: int
    largest: int  # packet
    server: str
    started: int

    def same_server(self, other: MariadbSession) -> bool:
        return self.server == other.server and abs(self.started - other.started) <= SAME_START


class MariadbConnection:
    """Sends one request at a time, and stops waiting for an answer after the read time-out, or when it is closed."""

    def __init__(
        self,
        connect: Callable[[], pymysql.Connection[Any]],
        clock: Clock,
        *,
        greet: Callable[[Callable[..., Sequence[Rows]]], None] | None = None,
        writes: bool = False,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._greet = greet  # checks the server, before any other request
        self._writes = writes
        self._db: pymysql.Connection[Any] | None = None
        self._opening: pymysql.Connection[Any] | None = None
        self._session: MariadbSession | None = None
        self._ghost: MariadbSession | None = None
        self._mutex = threading.Lock()
        self._closings = 0  # a caller remembers the number: if it has changed, nobody wants the answer any more
        self._closed = False
        self._leaked: list[object] = []

    def ask(self, *statements: Statement) -> list[Rows]:
        """Return the rows of the statements that have any. The statements must be harmless if rolled back."""
        for _ in range(TRANSIENT_TRIES):
            try:
                return self.exchange(*statements)
            except MariadbRefusal as error:
                if error.code not in (*TRANSIENT, HELD):
                    raise named(error) from None
                last = error
            self._clock.sleep(jitter(PAUSE))
        raise named(last) from None

    def exchange(self, *statements: Statement) -> list[Rows]:
        """As `ask`, but tried only once: raises `MariadbRefusal`."""
        with self._opened() as db:
            return self._exchange(db, statements)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Callable[..., list[Rows]]]:
        """Several requests one after the other; a transaction that is open afterwards is rolled back."""
        with self._opened() as db:
            try:
                yield lambda *statements: self._exchange(db, statements)
            finally:
                if self._db is not None and _in_transaction(db):
                    self._roll_back(db)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[pymysql.Connection[Any]]:
        came_after = self._closings
        with self._mutex:
            if self._closed or came_after != self._closings:  # while we waited for the lock
                raise Disconnected(_closed(), sent=False)
            db = self._ready()
            if came_after != self._closings:
                self._drop()
                raise Disconnected(_closed(), sent=False)
            yield db

    def cancel_waiters(self) -> None:
        """Callers that wait for an answer get an error."""
        self._closings += 1
        self._closed = True  # no other connection is opened
        for db in (self._db, self._opening):  # also stops the wait for a server that never answered
            if db is not None:
                with contextlib.suppress(Exception):
                    shut(_socket(db).fileno())

    def close(self) -> None:
        """Close it, waiting at most `GRACE` seconds."""
        self.cancel_waiters()
        if not self._mutex.acquire(timeout=GRACE):
            return  # still connecting: dropped when it has connected
        try:
            self._drop()
        finally:
            self._mutex.release()

    def abandon(self) -> None:
        """Called in a forked child: closing would end the session on the parent's socket."""
        self._leaked += [self._db, self._opening]
        self._opening = None
        self._db = self._session = self._ghost = None
        self._mutex = threading.Lock()

    def _exchange(self, db: pymysql.Connection[Any], statements: Sequence[Statement]) -> list[Rows]:
        text = ";".join([_rendered(*statement) for statement in statements]).encode()
        if self._session is not None and len(text) + ROOM > self._session.largest:
            raise MariadbRefusal(TOO_LARGE, f"{len(text):,} bytes, max_allowed_packet={self._session.largest:,}")
        commits = any(sql == COMMIT for sql, _ in statements)
        if commits:
            db.server_status |= IN_TRANSACTION  # type: ignore[attr-defined]  # until it says otherwise
        try:
            return _answers(db, text)
        except (MySQLError, OSError, ValueError, AttributeError) as error:
            raise self._refused(db, error, ended=commits and not _in_transaction(db)) from error
        except BaseException:
            self._lose()  # Ctrl-C in the middle: this answer would be taken for that of the next request
            raise

    def _refused(self, db: pymysql.Connection[Any], error: Exception, *, ended: bool) -> Exception:
        """Return what the error means for the whole packet. `ended`: its transaction had ended before the error."""
        reraise_signal_exception(error)
        code = error_code(error)
        if code is None or code in LOST:
            self._lose()
            return Disconnected(error, sent=True)
        if ended and code not in BEFORE_COMMIT:
            self._drop()
            return Disconnected(error, sent=True)
        if code == NOT_READY:
            self._drop()
            return Disconnected(error, sent=False)
        self._roll_back(db)
        if code in READ_ONLY:
            self._drop()  # after a failover the same name may lead to another server
        return MariadbRefusal(code, str(error.args[-1]))

    def _roll_back(self, db: pymysql.Connection[Any]) -> None:
        """Roll back what an error left open. If that fails, the end of the session rolls back."""
        try:
            _answers(db, b"ROLLBACK")
        except Exception:  # noqa: BLE001 - whatever it is, this connection is not used again
            self._lose()
        except BaseException:
            self._lose()
            raise

    def _ready(self) -> pymysql.Connection[Any]:
        if self._db is not None and _is_stale(self._db):
            self._drop()
        if self._db is None:
            try:
                self._open()
            except (MySQLError, OSError) as error:
                reraise_signal_exception(error)
                raise Disconnected(error, sent=False) from None
        assert self._db is not None  # noqa: S101
        return self._db

    def _open(self) -> None:
        db = self._opening = self._connect()
        try:
            db.connect()
            session = self._introduce(db)
        except BaseException:
            _close(db)
            raise
        finally:
            self._opening = None
        self._session, self._db = session, db  # not before: its requests must not meet the lost session's

    def _introduce(self, db: pymysql.Connection[Any]) -> MariadbSession:
        def ask(*statements: Statement) -> list[Rows]:
            try:
                return _answers(db, ";".join(_rendered(*statement) for statement in statements).encode())
            except MySQLError as error:
                code = error_code(error)
                if code is None or code in LOST or code == NOT_READY:
                    raise
                raise named(MariadbRefusal(code, str(error.args[-1]))) from None

        (((number, largest, server, started),),) = ask((SESSION, [0 if self._writes else LOCK_PATIENCE]), (WHO, ()))
        session = MariadbSession(number, largest, server, started)
        if self._greet is not None:
            self._greet(ask)
        if self._ghost is not None and self._writes:
            _end(self._ghost, session, ask, self._clock)
            self._ghost = None
        return session

    def _lose(self) -> None:
        """Drop a connection that may still be executing what it was sent."""
        self._ghost = self._ghost or self._session
        self._drop()

    def _drop(self) -> None:
        db, self._db = self._db, None
        self._session = None
        if db is not None:
            _close(db)


def _end(ghost: MariadbSession, session: MariadbSession, ask: Callable[..., list[Rows]], clock: Clock) -> None:
    """Kill the lost session and check that it is gone. After a restart it is gone, and its number may belong to another
    session.
    """
    if not ghost.same_server(session):
        return
    until = clock.monotonic() + GHOST_PATIENCE
    there = ("SELECT 1 FROM information_schema.processlist WHERE id = %s", [ghost.number])
    while ask(there)[0]:
        with contextlib.suppress(StoreError):  # it has already ended
            ask(("KILL CONNECTION %s", [ghost.number]))
        if clock.monotonic() >= until:
            raise OperationalError(0, "the session that was lost is still at work and cannot be ended")
        clock.sleep(PAUSE)


def _answers(db: pymysql.Connection[Any], text: bytes) -> list[Rows]:
    found: list[Rows] = []
    db.query(text)
    while True:
        result: Any = db._result  # type: ignore[attr-defined]
        if result.description is not None:
            found.append(result.rows or ())
        if not result.has_next:
            return found
        db.next_result()


def _rendered(sql: str, values: Sequence[Any]) -> str:
    return sql % tuple([_literal(value) for value in values]) if values else sql.replace("%%", "%")


def _literal(value: Any) -> str:
    """Return a value as a literal for our sql_mode, in which a backslash escapes."""
    if type(value) is str:
        return f"'{escape_string(value)}'"
    if value is None:
        return "NULL"
    if type(value) is float:
        text = repr(value)
        return text if "e" in text else f"{text}e0"  # without an exponent it would be a decimal
    if type(value) is int:
        return str(value)
    if type(value) is bytes:
        return f"'{escape_string(value.decode())}'"
    raise TypeError(f"{type(value).__name__} is not sent to MariaDB")


def _in_transaction(db: pymysql.Connection[Any]) -> bool:
    return bool(db.server_status & IN_TRANSACTION)  # type: ignore[attr-defined]


def _socket(db: pymysql.Connection[Any]) -> Any:
    return db._sock  # type: ignore[attr-defined]


def _is_stale(db: pymysql.Connection[Any]) -> bool:
    """Whether the server closed the connection while it was idle: checked before anything is sent."""
    sock = _socket(db)
    if sock is None:
        return True
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))  # nothing is under way: anything readable is the end of the connection, or an error


def _close(db: pymysql.Connection[Any]) -> None:
    """Close without a message to the server: on a silent network that would block."""
    with contextlib.suppress(Exception):
        db._force_close()  # type: ignore[attr-defined]


def _closed() -> OperationalError:
    return OperationalError(2013, "the store was closed")
