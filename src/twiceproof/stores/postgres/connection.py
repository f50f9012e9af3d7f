"""One connection by libpq; ends lost sessions; maps server errors to ours.

A lost session may still have our last commit before it. Sent again on a new connection, that commit could land, be
followed by a newer one, and then be overwritten when the old session wakes up. So the old session is terminated before
anything is sent again.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable, Iterator, Sequence

import psycopg
from msgspec import Struct
from psycopg import pq

from ...clock import Clock, jitter
from ...errors import SchemaMismatch, StoreError, StoreFull, StoreUnavailable, StoreUnsafe
from ...threads import AdaptiveSpin, reraise_signal_exception
from ..base import Disconnected
from ..user_drivers import shut
from .schema import EQ, SCHEMA

__all__ = ["LostSession", "PostgresConnection", "StatementRefused", "named", "session_of", "terminate"]


CONNECTION_LOST = ("08", "57P")
TRANSIENT = ("40001", "40P01", "23505")
DISK_FULL, OUT_OF_MEMORY, READ_ONLY, NOT_ALLOWED, CANCELLED = "53100", "53200", "25006", "42501", "57014"
LOCKED = "55P03"
MISSING = ("42P01", "42883", "42703", "3F000")
RAISED_BY_US = "P0001"
RAISED_AS_LOCKED = "TPLCK"  # by the trigger of a ledger that is locked


class StatementRefused(Exception):
    """The server's answer was an error. Only its first line: the details may hold a row's contents."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def transient(self) -> bool:
        """Nothing was written, and the same again may well work (a row inserted by hand counts, too)."""
        return self.code in TRANSIENT

    @property
    def disconnects(self) -> bool:
        """The session is over, or is with a server that no longer takes writes."""
        return self.code.startswith(CONNECTION_LOST)


def named(error: StatementRefused) -> StoreError:
    """The error as the caller sees it."""
    code, text = error.code, str(error)
    if code == DISK_FULL:
        return StoreFull(f"The database's disk is full ({text}); nothing was written. Free some space.")
    if code == OUT_OF_MEMORY:
        return StoreError(  # not unavailable: a smaller commit may fit
            f"The server ran out of memory ({text}); nothing was written. Raise max_locks_per_transaction."
        )
    if code == READ_ONLY:
        return StoreUnsafe(
            "The server takes no writes: it is a standby, or set to read-only. Point the URL at the primary.",
            findings=[],
        )
    if code == CANCELLED:
        return StoreUnavailable(
            f"The server cancelled the statement ({text}); nothing was written. Raise statement_timeout.",
            unsure=False,
        )
    if code == LOCKED:
        return StoreUnavailable(
            f"Another session holds a lock for too long ({text}); nothing was written. "
            "Look for a long-running transaction in the database, or a stopped process, then try again.",
            unsure=False,
        )
    return _ours_to_fix(code, text)


def _ours_to_fix(code: str, text: str) -> StoreError:
    if code == NOT_ALLOWED:
        move = "grant it what docs/reference/stores.md lists under Rights, or use the role that made the tables"
        if "database" in text:  # there is no schema yet, and it may not make one
            move = (
                f"run CREATE SCHEMA {SCHEMA} AUTHORIZATION … for it, or grant it CREATE on the database, "
                "or open the store once with a role that has it"
            )
        elif "schema" in text:
            move = (
                "grant it USAGE and, to make the tables, CREATE on the schema; or open it once with a role that has it"
            )
        return StoreError(f"The database role lacks a right ({text}); {move}.")
    if code in MISSING:
        return SchemaMismatch(f"A table or function of twiceproof is missing ({text}); open the store again.")
    if code == RAISED_AS_LOCKED:
        return SchemaMismatch(text)
    if code == RAISED_BY_US:
        return StoreUnsafe(f"{text}. Set default_transaction_isolation to 'read committed'.", findings=[])
    return StoreError(f"PostgreSQL refused: {text} ({code}). Please report this as a bug in twiceproof.")


SESSION = f"""
SELECT pid, backend_start FROM pg_catalog.pg_stat_activity WHERE pid {EQ} pg_catalog.pg_backend_pid()""".encode()  # noqa: S608 - constants
# One that waits for a synchronous standby has committed, and holds back what it wrote until the standby has it. If it
# were ended, all sessions would see what no standby may have.
END = f"""
SELECT CASE WHEN coalesce(wait_event {EQ} 'SyncRep', false) THEN NULL ELSE pg_catalog.pg_terminate_backend(pid) END
FROM pg_catalog.pg_stat_activity
WHERE pid {EQ} $1::int AND backend_start {EQ} $2::pg_catalog.timestamptz""".encode()  # noqa: S608 - constants
PAUSE = 0.005
PATIENCE = 2.0  # seconds for a session to end; the caller waits, and so do all behind it

AskServer = Callable[[bytes, Sequence[bytes]], Sequence[Sequence[bytes | None]]]


class LostSession(Struct, frozen=True):
    pid: bytes
    started: bytes


def session_of(ask: AskServer, pid: int) -> LostSession | None:
    """Who we are to the server. None behind a pooler: that session is shared, and not ours to end."""
    for there, started in ask(SESSION, ()):
        if there == str(pid).encode() and started is not None:
            return LostSession(there, started)
    return None


def terminate(ghost: LostSession, ask: AskServer, clock: Clock) -> None:
    """End the session, and see that it is gone."""
    until = clock.monotonic() + PATIENCE
    while ask(END, (ghost.pid, ghost.started)):
        if clock.monotonic() >= until:
            break
        clock.sleep(PAUSE)
    else:
        return
    raise psycopg.OperationalError("the session that was lost is still at work and cannot be ended")


TRANSIENT_TRIES = 20
TRANSIENT_PAUSE = 0.005
GLANCE = 0.2  # while no answer comes, so often is looked whether we were closed
GLANCES = 600  # what is answered without a sync, as a duplicate is, takes a quarter of a millisecond on this machine
SESSION_PATIENCE = 300.0  # seconds, with migrations, which wait a minute for sessions that use a table
GRACE = 1.0  # seconds that closing waits for a question under way

Rows = list[list[bytes | None]]
Ask = Callable[[bytes, Sequence[bytes]], Rows]
Waits = Callable[[pq.abc.PGconn, int], int]
Guard = Callable[[bytes, Sequence[bytes | None]], tuple[bytes, Sequence[bytes | None]]]


class PostgresConnection:
    """Asks one question at a time and gives up on an answer after `patience` seconds, or when it is closed.

    Speaks to libpq directly: psycopg's cursors would cost as much again as the server's work. No `SET`, no
    prepared statements, no session locks: behind a transaction pooler every question may meet another session.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        clock: Clock,
        patience: float,
        *,
        greet: Callable[[Ask], None] | None = None,
        guard: Guard | None = None,
        writes: bool = False,
    ) -> None:
        self._connect = connect
        self._greet = greet  # the server, before any other question
        self._clock = clock
        self._patience = patience
        self._guard = guard  # for what is asked behind a pooler
        self._writes = writes
        self._db: psycopg.Connection | None = None
        self._session: LostSession | None = None
        self._ghost: LostSession | None = None
        self._mutex = threading.Lock()
        self._closings = 0  # a caller remembers the number: if it has changed, the answer is no longer wanted
        self._asked_after = 0
        self._leaked: list[object] = []
        self._glances = AdaptiveSpin(GLANCES)

    def ask(self, sql: bytes, values: Sequence[bytes | None] = (), *, alone: bool = False) -> Rows:
        """The rows of the answer. What is asked must be one statement, and harmless if rolled back.

        `alone`: no other caller is at work here.
        """
        came_after = self._closings
        with self._mutex:
            self._begin(came_after)
            for _ in range(TRANSIENT_TRIES):
                try:
                    return self._exchange(sql, values, self._glances_then_waits if alone else self._waits)
                except StatementRefused as error:
                    if not error.transient:
                        raise self._translated(error) from None
                    last = error
                self._clock.sleep(jitter(TRANSIENT_PAUSE))
            raise named(last) from None

    @contextlib.contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        """The connection itself, for what is not one question. Dropped on any error."""
        came_after = self._closings
        with self._mutex:
            self._begin(came_after)
            db = self._opened()
            end = threading.Timer(SESSION_PATIENCE, shut, [db.pgconn.socket])  # psycopg itself waits for ever
            end.daemon = True
            end.start()
            try:
                yield db
            except psycopg.Error as error:
                self._drop()
                if error.sqlstate is None:
                    raise Disconnected(error, sent=True) from error
                raise named(StatementRefused(error.sqlstate, error.diag.message_primary or "")) from error
            except BaseException:
                self._drop()
                raise
            finally:
                end.cancel()

    def cancel_waiters(self) -> None:
        """Callers that wait for an answer get an error."""
        self._closings += 1

    def close(self) -> None:
        """Close it, waiting at most `GRACE` seconds."""
        self.cancel_waiters()
        if not self._mutex.acquire(timeout=GRACE):
            return  # still connecting: dropped when that is over
        try:
            self._drop()
        finally:
            self._mutex.release()

    def _begin(self, came_after: int) -> None:
        self._asked_after = came_after
        if self._was_closed():  # while we stood in line
            raise Disconnected(_closed(), sent=False)

    def _was_closed(self) -> bool:
        return self._closings != self._asked_after

    def abandon(self) -> None:
        """In a forked child: closing would end the session on the parent's socket."""
        self._leaked.append(self._db)
        self._db = self._session = self._ghost = None
        self._mutex = threading.Lock()

    def _exchange(self, sql: bytes, values: Sequence[bytes | None], waits: Waits) -> Rows:
        libpq = self._opened().pgconn
        guard = self._guard if self._session is None else None
        if guard is not None:
            sql, values = guard(sql, values)
        try:
            result = _answer(libpq, sql, values, waits)
        except (psycopg.Error, OSError) as error:
            self._lose()
            reraise_signal_exception(error)
            raise Disconnected(error, sent=True) from error
        except BaseException:
            self._lose()  # Ctrl-C in the middle: the answer to this would be taken for the next one's
            raise
        rows = _rows(result)
        if guard is not None and not rows:
            self._drop()  # a new connection is looked at before anything is asked on it
            raise Disconnected(_moved(), sent=False)
        return rows

    def _glances_then_waits(self, libpq: pq.abc.PGconn, events: int) -> int:
        poll = _poller(libpq, events).poll
        self._glances.look(lambda: bool(poll(0)))
        return self._waits(libpq, events)

    def _waits(self, libpq: pq.abc.PGconn, events: int) -> int:
        """A network that has gone silent must not keep us from being closed: looked at every now and then."""
        left = self._patience
        while left > 0:
            ready = _wait(libpq, events, min(GLANCE, left))
            if ready:
                return ready
            if self._was_closed():
                raise _closed()
            left -= GLANCE
        raise psycopg.OperationalError(f"no answer for {self._patience:g} s")

    def _translated(self, error: StatementRefused) -> Exception:
        if error.code == READ_ONLY:
            self._drop()  # after a failover the same name may lead to another server
        if error.disconnects:
            self._drop()
            return Disconnected(error, sent=True)
        return named(error)

    def _opened(self) -> psycopg.Connection:
        if self._db is not None and _is_stale(self._db.pgconn):
            self._drop()
        if self._db is not None:
            return self._db
        try:
            return self._open()
        except (psycopg.Error, OSError) as error:
            reraise_signal_exception(error)
            raise Disconnected(error, sent=False) from None

    def _open(self) -> psycopg.Connection:
        db = self._connect()
        try:
            if self._was_closed():
                raise _closed()
            self._session = self._introduce(db)
        except BaseException:
            _close(db)
            raise
        self._db = db  # not before: what is asked on it must meet the right server, and no ghost
        return db

    def asking(self, db: psycopg.Connection) -> Ask:
        """Questions on this very connection, with an end to waiting: psycopg's own have none."""

        def ask(sql: bytes, values: Sequence[bytes]) -> Rows:
            try:
                return _rows(_answer(db.pgconn, sql, values, self._waits))
            except StatementRefused as error:
                raise (Disconnected(error, sent=False) if error.disconnects else named(error)) from None

        return ask

    def _introduce(self, db: psycopg.Connection) -> LostSession | None:
        ask = self.asking(db)
        if self._greet is not None:
            self._greet(ask)
        if not self._writes:
            return None
        if self._ghost is not None:
            terminate(self._ghost, ask, self._clock)
            self._ghost = None
        return session_of(ask, db.info.backend_pid)

    def _lose(self) -> None:
        """Drop a connection that may still be carrying out what it was sent."""
        self._ghost = self._ghost or self._session
        self._drop()

    def _drop(self) -> None:
        db, self._db = self._db, None
        self._session = None
        if db is not None:
            _close(db)


def _close(db: psycopg.Connection) -> None:
    with contextlib.suppress(psycopg.Error):
        db.close()


def _is_stale(libpq: pq.abc.PGconn) -> bool:
    """Whether the server hung up while we were idle: better known before anything is sent."""
    try:
        if _wait(libpq, select.POLLIN, 0.0):
            libpq.consume_input()
    except (psycopg.Error, OSError) as error:
        reraise_signal_exception(error)
        return True
    return libpq.status != pq.ConnStatus.OK


def _closed() -> psycopg.OperationalError:
    return psycopg.OperationalError("the store was closed")


def _moved() -> psycopg.OperationalError:
    return psycopg.OperationalError("behind the pooler another server answers")


def _answer(libpq: pq.abc.PGconn, sql: bytes, values: Sequence[bytes | None], waits: Waits) -> pq.abc.PGresult:
    libpq.send_query_params(sql, values)
    while libpq.flush():
        if waits(libpq, select.POLLIN | select.POLLOUT) & select.POLLIN:
            libpq.consume_input()  # or both sides could wait for the other to read
    last = None
    while (result := _next_result(libpq, waits)) is not None:
        last = result  # the transaction ends after its rows were sent: a failure there comes last
    if last is None or libpq.status != pq.ConnStatus.OK:
        raise psycopg.OperationalError("the connection broke while the answer was on its way")
    return last


def _next_result(libpq: pq.abc.PGconn, waits: Waits) -> pq.abc.PGresult | None:
    while libpq.is_busy():
        waits(libpq, select.POLLIN)
        libpq.consume_input()
    return libpq.get_result()


def _wait(libpq: pq.abc.PGconn, events: int, seconds: float) -> int:
    ready = _poller(libpq, events).poll(seconds * 1000)
    return ready[0][1] if ready else 0


def _poller(libpq: pq.abc.PGconn, events: int) -> select.poll:
    poller = select.poll()
    poller.register(libpq.socket, events)
    return poller


def _rows(result: pq.abc.PGresult) -> Rows:
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise _refusal(result)
    columns = range(result.nfields)
    return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]


def _refusal(result: pq.abc.PGresult) -> StatementRefused:
    code = result.error_field(pq.DiagnosticField.SQLSTATE) or b"08006"
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"the connection broke"
    return StatementRefused(code.decode(), text.decode(errors="replace"))
