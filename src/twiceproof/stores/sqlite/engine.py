"""The SQLite store: one file, no set-up, durable, and safe for several processes at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ...clock import Clock, system_clock
from ...errors import StoreError
from ...records import Address, Batch, Due, Found, Outcome, Page, Record
from ...threads import at_fork
from ..base import FEW, PASSED, Finding, StorePromises, chosen, indexed_by_time, soonest
from .connection import (
    READERS,
    FileIdentity,
    QuietConnection,
    Readers,
    begin_immediate,
    open_handle,
    translate,
    translated,
)
from .doctor import examine, note_host, refuse_unsafe
from .join import SqliteJoins
from .locks import carried_over
from .notify import UNRELIABLE, FileWatch, OnChange
from .restored import FileMark
from .rows import BORDER, COLUMNS, READ, SqlitePrefixScan, SqliteScan, VersionCounter, catch_up, land_counted, record_of
from .schema import create_private, migrate

__all__ = ["SqliteEngine", "look"]


SHORTEST_LOG, LONGEST_LOG = 1_000, 8_000  # pages; 4 and 32 MB
WRITER_CACHE, READER_CACHE = 32_768, 32_768 // READERS  # KiB of pages: 64 MB for all connections of a store together
COMMITS_BETWEEN_FITS = 4_096  # a file that outgrows its log is noticed
FORK_PATIENCE = (
    1.0  # seconds to wait for readers and writers; one that takes longer makes the file unusable in the child
)


# -- what is due: found without the write lock, which is taken if there is something ---------------

# For one queue alone the smallest time is the first entry of the index; for several together, all would be read.
FIRST = (
    "SELECT min(r.due_at) FROM twiceproof_records AS r INDEXED BY twiceproof_records_due"
    " WHERE r.kind={kind} AND r.due_at IS NOT NULL AND r.queue = {queue}"
)
NAMED = (
    f"SELECT column1 AS queue, ({FIRST.format(kind='?1', queue='column1')}) AS first FROM (VALUES {{names}})"  # noqa: S608
    " WHERE first IS NOT NULL ORDER BY first"
)
# What is due first, whatever its queue. The condition is that of the index.
BY_TIME = """
SELECT queue, due_at FROM twiceproof_records INDEXED BY twiceproof_records_time
WHERE kind=? AND due_at IS NOT NULL AND instr(queue, '/') > 0 ORDER BY due_at LIMIT ?"""
# From each queue with due records to the next: the index has them in this order, the first due first.
ALL = f"""
WITH RECURSIVE heads (queue) AS (
    SELECT min(queue) FROM twiceproof_records INDEXED BY twiceproof_records_due WHERE kind=:kind AND due_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(r.queue) FROM twiceproof_records AS r INDEXED BY twiceproof_records_due
        WHERE r.kind=:kind AND r.due_at IS NOT NULL AND r.queue > heads.queue
    ) FROM heads WHERE heads.queue IS NOT NULL
)
SELECT queue, ({FIRST.format(kind=":kind", queue="heads.queue")}) AS first FROM heads
WHERE queue IS NOT NULL ORDER BY first"""  # noqa: S608


def look(
    db: sqlite3.Connection, kind: str, queues: Collection[str], now: float, limit: int
) -> tuple[list[str], float | None]:
    """The queues in which something is due, and when the first of the others is."""
    asked = frozenset(queues)
    if not asked:
        return [], None
    if len(asked) <= FEW:
        return _of_heads(_named(db, kind, asked), asked, now, limit)
    if indexed_by_time(asked):
        with contextlib.closing(db.execute(BY_TIME, (kind, limit + PASSED))) as waiting:
            ripe, later, told = soonest(waiting, asked, now, limit, limit + PASSED)
        if told or (later is not None and later > now):
            return ripe, later
    return _of_heads(db.execute(ALL, {"kind": kind}), asked, now, limit)


def _of_heads(heads: sqlite3.Cursor, asked: Collection[str], now: float, limit: int) -> tuple[list[str], float | None]:
    with contextlib.closing(heads):
        return chosen(heads, asked, now, limit)


def hand_out(
    db: sqlite3.Connection,
    kind: str,
    queues: Sequence[str],
    limit: int,
    times: tuple[float, float],
    numbers: VersionCounter,
) -> tuple[list[Record], float | None]:
    """Within a write transaction: what is due in these queues, hidden, and when the first of them is due next.
    `times`: now, and until when to hide."""
    now, until = times
    waiting = f"FROM twiceproof_records WHERE kind=? AND queue IN ({_marks(queues)}) AND due_at"
    rows = db.execute(
        f"SELECT {COLUMNS} {waiting} <= ? ORDER BY due_at, id LIMIT ?", (kind, *queues, now, limit)
    ).fetchall()
    number = numbers.next(db)
    if rows:
        db.executemany(
            "UPDATE twiceproof_records SET due_at=?, version=? WHERE id=?",
            [(until, number, row[0]) for row in rows],
        )
        numbers.use(db, 1)
    _, later = _named(db, kind, queues).fetchone() or ("", None)
    return [record_of((*row[:5], number, *row[6:12], until, row[13])) for row in rows], later


def _named(db: sqlite3.Connection, kind: str, queues: Collection[str]) -> sqlite3.Cursor:
    return db.execute(NAMED.format(names=",".join(["(?)"] * len(queues))), (kind, *queues))


def _marks(queues: Collection[str]) -> str:
    return ",".join("?" * len(queues))


class SqliteEngine:
    """One writing connection, used by the leader of a commit, and some reading ones."""

    promises = StorePromises("yes", "one machine", "the machine's", "0: two commits to disk", "0", "SQLite")
    batch_limit = 500
    group_limit = 500
    reads_first = True
    best_effort = False
    newest_first = True
    one_per_space = False
    links_spaces = True

    def __init__(
        self, path: Path, *, clock: Clock = system_clock, durability: str = "power", patience: float = 10.0
    ) -> None:
        self.path = path = path.absolute()  # a daemon or a test that changes the directory later keeps this file
        self.durability = durability
        self._clock = clock
        self._patience = patience
        self.joins = SqliteJoins(path, clock, durability=durability, patience=patience)
        self._process = os.getpid()
        self._writer: QuietConnection | None = None
        self._writers = itertools.count()
        self._readers = Readers(self._open)
        self._writing = threading.Lock()
        self._numbers = VersionCounter()
        self._file = FileIdentity(path)
        self._mark = FileMark(path)
        self._commits = itertools.count(1)
        self._watch = FileWatch(self._data_version)
        self._forking = 0  # the thread that forks, and has the write lock for it
        self._prepare()
        at_fork(
            self,
            before=SqliteEngine.before_fork,
            in_parent=SqliteEngine.after_fork,
            in_child=SqliteEngine.in_child,
        )

    def _prepare(self) -> None:
        refuse_unsafe(self.path)
        create_private(self.path)
        with translated():
            db = self._connect()  # others may be creating the same file: SQLite's own patience is wanted here
            migrate(db, self._clock, self._patience)
            db.hold()
        self._readers.adopt(db)
        self._file.learn()
        with self._transaction() as (writer, now):
            note_host(writer, now)
            self._mark.note_restored(writer, now)
            catch_up(writer, now)

    # -- commits ---------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome]:
        with self._transaction() as (db, now):
            if next(self._commits) % COMMITS_BETWEEN_FITS == 0:
                fit_log(db)
                self._mark.update(db)
            return land_counted(db, batches, self._numbers, now)

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        with self._reader() as db:
            now = self._clock.now()
            self._file.look(now)
            ripe, later = look(db, kind, queues, now, limit)
        records: list[Record] = []
        if ripe:
            with self._transaction() as (db, now):
                records, first = hand_out(db, kind, ripe, limit, (now, now + hide), self._numbers)
            later = min((at for at in (later, first) if at is not None), default=None)
        return Due(records, None if later is None else max(0.0, later - now), now)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[tuple[sqlite3.Connection, float]]:
        """A write transaction and the time at which its lock was had."""
        self._notice_fork()
        with self._writing, translated(on_broken=self._drop_writer):
            db = self._writer = self._writer or self._open_writer()
            try:
                begin_immediate(db, self._clock, self._patience)
                now = self._clock.now()
                self._file.look(now)
                yield db, now
                db.execute("COMMIT")
            except BaseException:  # also an interrupt, wherever it hits: a transaction left open blocks every process
                self._numbers.forget()
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    # -- reads -----------------------------------------------------------------------------------

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        """Each on the spot, on the caller's own thread. This is what a replay costs, so it is kept lean."""
        db = self._borrow()
        try:
            rows = [db.execute(READ, (at.space, at.kind, at.key)).fetchone() for at in addresses]
        except BaseException as error:
            self._readers.drop(db)
            if isinstance(error, sqlite3.Error):
                raise translate(error) from error
            raise
        self._readers.give_back(db)
        now = self._clock.now()
        return [Found(record_of(row) if row else None, now) for row in rows]

    def scan(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Page:
        if prefix is not None and newest is None:
            return self._scan_prefix(SqlitePrefixScan(kind, prefix, state, after, limit), limit)
        asked = SqliteScan(kind, space, state, after, limit, newest, prefix)
        with self._reader() as db:
            rows = db.execute(asked.sql, asked.values).fetchall()
        return asked.page(rows, self._clock.now())

    def _scan_prefix(self, asked: SqlitePrefixScan, limit: int) -> Page:
        border = None
        with self._reader() as db:
            db.execute("BEGIN")  # both see the same records, or some would be passed over or met twice
            rows = db.execute(asked.sql, asked.values).fetchall()
            if len(rows) <= limit:
                border = db.execute(BORDER, asked.values).fetchone()
            db.execute("COMMIT")
        return asked.page(rows, border, self._clock.now())

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
        marks = ",".join("?" * len(kinds))
        sql = f"SELECT {COLUMNS} FROM twiceproof_records WHERE space=? AND kind IN ({marks}) ORDER BY kind, key LIMIT ?"  # noqa: S608
        with self._reader() as db:
            return [record_of(row) for space in spaces for row in db.execute(sql, (space, *kinds, limit))]

    @contextlib.contextmanager
    def _reader(self) -> Iterator[QuietConnection]:
        db = self._borrow()
        try:
            with translated():
                yield db
        except BaseException:
            self._readers.drop(db)
            raise
        self._readers.give_back(db)

    def _borrow(self) -> QuietConnection:
        self._notice_fork()
        with translated():
            return self._readers.borrow()

    # -- other processes -------------------------------------------------------------------------

    def listen(self, on_change: OnChange) -> float | None:
        """Notify of writes by other processes from now on. SQLite cannot say what they wrote."""
        return None if self._watch.start(on_change) else UNRELIABLE

    def _data_version(self) -> tuple[int, int] | None:
        """Asked of the writing connection, whose own commits do not count. None: it is at work just now."""
        if not self._writing.acquire(blocking=False):
            return None
        try:
            db = self._writer = self._writer or self._open_writer()
            return self._nth_writer, int(db.execute("PRAGMA data_version").fetchone()[0])
        except (sqlite3.Error, StoreError):
            return None
        finally:
            self._writing.release()

    # -- life ------------------------------------------------------------------------------------

    def _open_writer(self) -> QuietConnection:
        """It waits for the write lock by itself, in shorter steps than SQLite's own (see `patiently`)."""
        self._numbers.forget()
        self._nth_writer = next(self._writers)
        db = self._open()
        db.execute(f"PRAGMA cache_size=-{WRITER_CACHE}")
        db.execute("PRAGMA busy_timeout=0")
        fit_log(db)
        return db

    def _open(self) -> QuietConnection:
        db = self._connect()
        db.hold()
        return db

    def _connect(self) -> QuietConnection:
        self._file.check()
        db = open_handle(self.path)
        db.execute(f"PRAGMA synchronous={'FULL' if self.durability == 'power' else 'NORMAL'}")
        db.execute(f"PRAGMA cache_size=-{READER_CACHE}")
        return db

    def examine(self) -> Sequence[Finding]:
        with self._reader() as db:
            return examine(db, self.path, self._clock)

    def close(self) -> None:
        self._watch.close()
        self._readers.close()
        with self._writing:  # closing a handle under another thread's statement crashes the interpreter
            if self._writer is not None and self._process == os.getpid():
                with contextlib.suppress(sqlite3.Error, OSError):
                    self._mark.update(self._writer)
            self._close_writer()

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    # -- forks -----------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Let reads and commits end, and close every connection: SQLite keeps in memory who has which lock, and a child
        would take its parent's locks for its own (see `locks.py`). Both open new ones when they need them.
        """
        if self._writing.acquire(timeout=FORK_PATIENCE):
            self._forking = threading.get_ident()
            if self._readers.pause(FORK_PATIENCE):
                self._close_writer()

    def after_fork(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = 0
            self._readers.resume()
            self._writing.release()

    def in_child(self) -> None:
        self._process = os.getpid()
        if self.joins.under_way():
            carried_over(self.path)
        self.abandon()

    def abandon(self) -> None:
        """What the parent left open is left alone: a handle is never closed but in the process that opened it."""
        self._writer = None
        self._readers.reset()
        self._writing = threading.Lock()
        self._forking = 0
        self._watch.reset()

    def _notice_fork(self) -> None:
        """Also a fork that did not run Python's hooks, as in some servers."""
        if self._process != os.getpid():
            self.in_child()

    def _drop_writer(self) -> None:
        """After an I/O error the handle is not to be trusted: the next commit opens a fresh one."""
        with contextlib.suppress(sqlite3.Error):
            self._close_writer()


def fit_log(db: sqlite3.Connection) -> None:
    """How many pages the log holds before they are brought to the file.

    Random keys scatter over a large file, and each checkpoint syncs all the pages they touched: a longer log does that
    less often. But a log that still grows makes each commit's sync dearer by half: a small file's is soon written over.
    """
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA wal_autocheckpoint={min(max(pages // 8, SHORTEST_LOG), LONGEST_LOG)}")
