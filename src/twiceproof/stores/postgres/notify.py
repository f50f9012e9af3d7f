"""Wakes waiters in other processes with NOTIFY. A hint: it may be lost, late or missing behind a pooler."""

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

__all__ = ["Heard", "PostgresListener", "PostgresNotifier", "meant_by"]


CHANNEL = "twiceproof"
# Nobody waits for this commit to reach the disk; a NOTIFY inside the batch's own transaction would make
# all commits of the database queue behind one lock.
NOTIFY = (
    b"SELECT pg_catalog.set_config('synchronous_commit', 'off', true), "
    b"pg_catalog.pg_notify('twiceproof', $1::pg_catalog.text)"
)
EVERYONE = "*"
MOST_SPACES = 200
PAUSE = 0.02
GRACE = 1.0  # how long closing waits for a thread; all it could bring is a hint
PATIENCE = 10.0  # with a server that is to let us listen
FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0
UNHEARD = 0.8  # how long to rely on hearing while it is not known that we do: behind a pooler we never will

Ask = Callable[[bytes, Sequence[bytes]], object]
Heard = Callable[[Callable[[str], bool]], object]


def short(space: str) -> str:
    return f"{zlib.crc32(space.encode()):08x}"


def meant_by(payload: str) -> Callable[[str], bool]:
    """Whether a notification is about a space. Sometimes about too many: whoever wakes looks for itself."""
    if payload == EVERYONE:
        return lambda space: True
    marks = frozenset(payload.split(","))
    return lambda space: short(space) in marks


class PostgresNotifier:
    """Tells other processes which spaces changed: from its own thread, at most once in 20 ms."""

    def __init__(self, ask: Ask, sleep: Callable[[float], None]) -> None:
        self._ask = ask
        self._sleep = sleep
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._mutex = threading.Lock()
        self._spaces: set[str] = set()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()  # of the living thread: one that is left behind keeps its own

    def tell(self, spaces: Iterable[str]) -> None:
        with self._mutex:
            before = len(self._spaces)
            self._spaces.update(spaces)
            if len(self._spaces) == before:
                return
            if self._thread is None:
                run = (self._some, self._closing)
                thread = threading.Thread(target=self._run, args=run, name="twiceproof-notify", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread to be had: a hint less; what was committed must not look failed
                    return
                self._thread = thread
        self._some.set()

    def close(self) -> None:
        """What is still to be told is told, unless the network has gone silent: then nobody waits for it."""
        with self._mutex:
            thread, self._thread = self._thread, None
            some, self._some = self._some, threading.Event()
            closing, self._closing = self._closing, threading.Event()
        if thread is not None:
            closing.set()
            some.set()
            thread.join(GRACE)

    def _run(self, some: threading.Event, closing: threading.Event) -> None:
        while True:
            some.wait()
            some.clear()
            payload = self._payload()
            if payload:
                with contextlib.suppress(Exception):  # a hint that is lost costs its waiter a poll
                    self._ask(NOTIFY, [payload.encode()])
            if closing.is_set():
                return
            self._sleep(PAUSE)

    def _payload(self) -> str:
        with self._mutex:
            spaces, self._spaces = self._spaces, set()
        return EVERYONE if len(spaces) > MOST_SPACES else ",".join(map(short, spaces))


class PostgresListener:
    """Hears what other processes tell, on a thread and a connection of its own, from the first pause on."""

    def __init__(self, connect: Callable[[], psycopg.Connection], ask: Ask) -> None:
        self._connect = connect
        self._ask = ask
        self._leaked: list[object] = []
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not exist here."""
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop: socket.socket | None = None
        self._hears = False

    def start(self, heard: Heard) -> float | None:
        """How long one may wait without looking: None once we know that we hear."""
        if self._thread is None:
            self._start(heard)
        return None if self._hears else UNHEARD

    def _start(self, heard: Heard) -> None:
        with self._mutex:
            if self._thread is not None:
                return
            stop, stopped = socket.socketpair()
            run = (heard, stopped)
            thread = threading.Thread(target=self._run, args=run, name="twiceproof-listen", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread to be had: who waits looks by itself, and the next one tries again
                stop.close()
                stopped.close()
                return
            self._stop, self._thread = stop, thread

    def close(self) -> None:
        with self._mutex:
            thread, self._thread = self._thread, None
            if thread is not None and self._stop is not None:
                self._stop.close()
                thread.join(GRACE)  # one that is still connecting ends by itself

    def _run(self, heard: Heard, stopped: socket.socket) -> None:
        retry = FIRST_RETRY
        with stopped:
            while True:
                with contextlib.suppress(psycopg.Error, OSError), contextlib.closing(self._connect()) as db:
                    if not _begin_to_listen(db, stopped):
                        return
                    retry = FIRST_RETRY
                    heard(meant_by(EVERYONE))  # what changed before we listened is not told again
                    if self._hear(db, heard, stopped):
                        return
                self._hears = False
                heard(meant_by(EVERYONE))  # whoever relied on us looks, and then relies on us no more
                if _readable(stopped, timeout=retry):
                    return
                retry = min(retry * 2, LONGEST_RETRY)

    def _hear(self, db: psycopg.Connection, heard: Heard, stopped: socket.socket) -> bool:
        """Pass on what is told until we are stopped (True) or the connection breaks (an error)."""
        echo = f"echo:{db.info.backend_pid}"
        with contextlib.suppress(Exception):  # told by another connection: a pooler would pass on only our own
            self._ask(NOTIFY, [echo.encode()])
        while not _readable(db.pgconn.socket, stopped, timeout=None) & {stopped}:
            db.pgconn.consume_input()
            while (told := db.pgconn.notifies()) is not None:
                if told.extra.decode() == echo:
                    self._hears = True
                else:
                    heard(meant_by(told.extra.decode()))
        return True


def _begin_to_listen(db: psycopg.Connection, stopped: socket.socket) -> bool:
    """False: we were stopped first. Not by `execute`, which would wait for ever for an answer that got lost."""
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
    """Not by `select`, which fails in a process with a thousand open files."""
    with selectors.DefaultSelector() as waiting:
        for source in sources:
            waiting.register(source, selectors.EVENT_READ)
        return {key.fileobj for key, _ in waiting.select(timeout)}
