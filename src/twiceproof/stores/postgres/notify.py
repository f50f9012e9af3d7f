"""Notifies waiters in other processes with NOTIFY. A hint: it may be lost, late, or missing behind a pooler."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
from psycopg import pq

from ...threads import BackgroundThread, ThreadRun

__all__ = ["OnChange", "PostgresListener", "PostgresNotifier", "meant_by"]


CHANNEL = "twiceproof"
# This commit need not reach the disk before it returns; a NOTIFY inside the batch's own transaction would make all
# commits of the database queue behind one lock.
NOTIFY = (
    b"SELECT pg_catalog.set_config('synchronous_commit', 'off', true), "
    b"pg_catalog.pg_notify('twiceproof', $1::pg_catalog.text)"
)
EVERYONE = "*"
MOST_SPACES = 200
PAUSE = 0.02
GRACE = 1.0  # seconds that closing waits for a thread, which carries hints only
PATIENCE = 10.0  # seconds to wait for the reply to LISTEN
FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0
UNRELIABLE = 0.8  # how long callers may rely on notifications that may not come: behind a pooler they never do

Ask = Callable[[bytes, Sequence[bytes]], object]
OnChange = Callable[[Callable[[str], bool]], object]


def short(space: str) -> str:
    return f"{zlib.crc32(space.encode()):08x}"


def meant_by(payload: str) -> Callable[[str], bool]:
    """Whether a notification is about a space. Sometimes about too many: a caller that wakes looks for itself."""
    if payload == EVERYONE:
        return lambda space: True
    marks = frozenset(payload.split(","))
    return lambda space: short(space) in marks


class PostgresNotifier:
    """Notifies other processes which spaces changed: from its own thread, at most once in 20 ms."""

    def __init__(self, ask: Ask, sleep: Callable[[float], None]) -> None:
        self._ask = ask
        self._sleep = sleep
        self._thread = BackgroundThread(self, PostgresNotifier._send, "twiceproof-notify", grace=GRACE, finish=True)
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._thread.reset()
        self._mutex = threading.Lock()
        self._spaces: set[str] = set()

    def tell(self, spaces: Iterable[str]) -> None:
        with self._mutex:
            before = len(self._spaces)
            self._spaces.update(spaces)
            if len(self._spaces) == before:
                return
        with contextlib.suppress(RuntimeError):  # no thread: a hint less; what was committed must not look failed
            self._thread.start()
            self._thread.wake()

    def close(self) -> None:
        """Pending notifications are sent first, unless the network has gone silent: then they are not waited for."""
        self._thread.stop()

    def _send(self, run: ThreadRun) -> None:
        payload = self._payload()
        if not payload:
            return
        with contextlib.suppress(Exception):  # a hint that is lost costs its waiter a poll
            self._ask(NOTIFY, [payload.encode()])
        if not run.stopped:
            self._sleep(PAUSE)

    def _payload(self) -> str:
        with self._mutex:
            spaces, self._spaces = self._spaces, set()
        return EVERYONE if len(spaces) > MOST_SPACES else ",".join(map(short, spaces))


class PostgresListener:
    """Receives notifications of other processes, on a thread and a connection of its own, from the first wait on."""

    def __init__(self, connect: Callable[[], psycopg.Connection], ask: Ask) -> None:
        self._connect = connect
        self._ask = ask
        self._leaked: list[object] = []
        self._sockets: tuple[socket.socket, socket.socket] | None = None  # closing one wakes the thread by the other
        self._thread = BackgroundThread(self, PostgresListener._listen, "twiceproof-listen", grace=GRACE)
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._thread.reset()
        self._mutex = threading.Lock()
        self._leaked.append(self._sockets)
        self._sockets = None
        self._on_change: OnChange = _ignore
        self._receives = False

    def start(self, on_change: OnChange) -> float | None:
        """How long a caller may wait without looking: None once notifications are known to be received."""
        if not self._thread.started:
            self._start(on_change)
        return None if self._receives else UNRELIABLE

    def _start(self, on_change: OnChange) -> None:
        with self._mutex:
            if self._thread.started:
                return
            stop, stopped = socket.socketpair()
            self._on_change, self._sockets = on_change, (stop, stopped)
            try:
                self._thread.start()
            except RuntimeError:  # no thread: the caller looks by itself, and the next one tries again
                stop.close()
                stopped.close()

    def close(self) -> None:
        with self._mutex:
            if self._thread.started and self._sockets is not None:
                self._sockets[0].close()
                self._thread.stop()  # a thread that is still connecting ends by itself

    def _listen(self, run: ThreadRun) -> None:
        """Listen until stopped; after a broken connection, connect again."""
        if self._sockets is None:
            return
        retry = FIRST_RETRY
        with self._sockets[1] as stopped:
            while True:
                with contextlib.suppress(psycopg.Error, OSError), contextlib.closing(self._connect()) as db:
                    if not _begin_to_listen(db, stopped):
                        return
                    retry = FIRST_RETRY
                    self._on_change(meant_by(EVERYONE))  # there is no notification of earlier changes
                    if self._receive(db, stopped):
                        return
                self._receives = False
                self._on_change(
                    meant_by(EVERYONE)
                )  # callers that relied on notifications look, and rely on them no more
                if _readable(stopped, timeout=retry):
                    return
                retry = min(retry * 2, LONGEST_RETRY)

    def _receive(self, db: psycopg.Connection, stopped: socket.socket) -> bool:
        """Pass notifications on until stopped (True) or the connection breaks (an error)."""
        echo = f"echo:{db.info.backend_pid}"
        with contextlib.suppress(Exception):  # sent on another connection: a pooler would pass on only our own
            self._ask(NOTIFY, [echo.encode()])
        while not _readable(db.pgconn.socket, stopped, timeout=None) & {stopped}:
            db.pgconn.consume_input()
            while (notification := db.pgconn.notifies()) is not None:
                if notification.extra.decode() == echo:
                    self._receives = True
                else:
                    self._on_change(meant_by(notification.extra.decode()))
        return True


def _ignore(matches: Callable[[str], bool]) -> None:
    return None


def _begin_to_listen(db: psycopg.Connection, stopped: socket.socket) -> bool:
    """False: stopped first. Not by `execute`, which would wait for ever for a reply that got lost."""
    db.pgconn.send_query(f"LISTEN {CHANNEL}".encode())
    while db.pgconn.flush() or db.pgconn.is_busy():
        ready = _readable(db.pgconn.socket, stopped, timeout=PATIENCE)
        if stopped in ready:
            return False
        if not ready:
            raise psycopg.OperationalError(f"no answer for {PATIENCE:g} s")
        db.pgconn.consume_input()
    while (result := db.pgconn.get_result()) is not None:
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.OperationalError("may not listen")
    return True


def _readable(*sources: int | socket.socket, timeout: float | None) -> set[Any]:
    """Not by `select.select`, which fails in a process with a thousand open files."""
    with selectors.DefaultSelector() as waiting:
        for source in sources:
            waiting.register(source, selectors.EVENT_READ)
        return {key.fileobj for key, _ in waiting.select(timeout)}
