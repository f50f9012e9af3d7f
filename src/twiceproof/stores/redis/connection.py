"""Connections to one server; error meanings."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from hiredis import ProtocolError, Reader, ReplyError
from redis.connection import Connection, SSLConnection
from redis.exceptions import AuthenticationError, RedisError

from ...errors import StoreError, StoreFull
from ...threads import AdaptiveSpin, reraise_signal_exception
from .url import RedisUrl

__all__ = [
    "Broken",
    "Command",
    "Elsewhere",
    "IsReplica",
    "NotNow",
    "RedisConnection",
    "RedisServer",
    "facts_of",
    "is_turned_away",
    "is_unknown_script",
    "named",
    "understood",
]


class Elsewhere(Exception):
    """The slot has moved or is moving; nothing was done. Look at the map, then ask again."""


class NotNow(Exception):
    """The server is there but does not serve: it loads, has no master, no slots, no replicas. Nothing was done."""


class IsReplica(NotNow):
    """Its answers may be old, and it takes no writes."""


class Broken(Exception):
    """The connection broke. `sent`: the work may have reached the server."""

    def __init__(self, cause: BaseException, *, sent: bool) -> None:
        super().__init__(str(cause))
        self.sent = sent


CODES = re.compile(
    r"\b(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|LOADING|MASTERDOWN|READONLY|NOREPLICAS|BUSY|UNBLOCKED|OOM|MISCONF"
    r"|NOSCRIPT|NOPERM|ACL failure|user executing the script can't|NOAUTH|WRONGPASS|WRONGTYPE)\b"
)
ELSEWHERE = {"MOVED", "ASK", "TRYAGAIN"}
TURNED_AWAY = ("LOADING ", "ERR max number of clients")
NOT_NOW = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "NOREPLICAS", "BUSY", "UNBLOCKED"}


def understood(error: Exception) -> Exception:
    """A reply that is an error, as one of ours."""
    text = str(error)
    return Elsewhere(text) if _code(text) in ELSEWHERE else named(text)


def is_turned_away(error: Exception) -> bool:
    """Whether the server has looked at nothing that was sent to it."""
    return str(error).startswith(TURNED_AWAY)


def is_unknown_script(error: Exception) -> bool:
    return str(error).startswith("NOSCRIPT")


def _code(text: str) -> str:
    match = CODES.search(text)
    return match[1] if match else ""


def named(text: str) -> StoreError | NotNow:
    """What a script or a server complained of, by the code in its text."""
    code = _code(text)
    if code in NOT_NOW:
        return NotNow(text)
    kind, message = MESSAGES.get(code, (StoreError, UNKNOWN))
    return kind(message.format(text=text))


MESSAGES: dict[str, tuple[type[StoreError], str]] = {
    "OOM": (
        StoreFull,
        "Redis has reached its maxmemory; nothing was written. Raise maxmemory or purge old records, then try again.",
    ),
    "MISCONF": (
        StoreFull,
        "Redis cannot write to its disk and refuses writes; nothing was written. "
        "Free some space on the server, then try again.",
    ),
    "NOAUTH": (StoreError, "Redis refused the user or the password; correct them in the store's URL."),
    "WRONGPASS": (StoreError, "Redis refused the user or the password; correct them in the store's URL."),
    "NOPERM": (
        StoreError,
        "The Redis user may not do this ({text}); let it have ~twiceproof:* +@read +@write +@scripting +info "
        "+time +client|id +client|kill +cluster|slots +config|get.",
    ),
    "WRONGTYPE": (
        StoreError,
        "A key under twiceproof: holds something that twiceproof did not write; nothing was written. "
        "Use another database.",
    ),
}
MESSAGES["ACL failure"] = MESSAGES["user executing the script can't"] = MESSAGES["NOPERM"]  # as scripts say it
UNKNOWN = "Redis refused: {text}. This is a bug in twiceproof or in the server; please report it."


Command = Sequence[bytes | str | int]

READ_SIZE = 65_536
GLANCES = 100  # a round trip to a server on this machine takes a hundred microseconds


class RedisConnection:
    """One connection, used by one thread at a time. Commands go out together, then the replies come in.

    redis-py knows how to connect (TLS, passwords, databases); a round trip through it costs three times ours.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Any = connection  # redis-py leaves its methods untyped
        self._sock: Any = None
        self._replies = Reader()
        self.id = 0  # the server's number for this connection; 0 if it does not say
        self._glances: AdaptiveSpin | None = None  # where the socket can be looked at without waiting

    def connect(self) -> None:
        self._connection.connect()
        self._sock = self._connection._sock  # every reply so far was waited for: nothing is left in its buffer
        if type(self._sock) is socket.socket and sys.platform == "linux":
            _leave_waiting_to_the_kernel(self._sock)
            self._glances = AdaptiveSpin(GLANCES)

    def send(self, wire: bytes) -> None:
        try:
            self._sock.sendall(wire)
        except OSError as error:
            reraise_signal_exception(error)
            raise Broken(_told(error), sent=True) from error  # part of it may have left

    def receive(self, *, alone: bool = False) -> Any:
        """The next reply; an error of the server's is returned, not raised. `alone`: no other caller is at work."""
        replies = self._replies
        try:
            if alone and self._glances is not None:
                self._glances.look(self._peek)
            while (reply := replies.gets()) is False:
                data = self._sock.recv(READ_SIZE)
                if not data:
                    raise ConnectionError("the server closed the connection")
                replies.feed(data)
        except (OSError, ProtocolError) as error:
            reraise_signal_exception(error)
            raise Broken(_told(error), sent=True) from error
        if type(reply) is ReplyError and is_turned_away(reply):
            raise Broken(reply, sent=False)
        return reply

    def _peek(self) -> bool:
        try:
            data = self._sock.recv(READ_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if data:  # otherwise it was closed, which the next read finds
            self._replies.feed(data)
        return True

    def ask(self, *commands: Command) -> list[Any]:
        self.send(b"".join(self._connection.pack_commands(commands)))
        return [self.receive() for _ in commands]

    def wait_for_ever(self) -> None:
        """For a subscription. Not before the last command: its reply can get lost."""
        self._sock.settimeout(None)
        if type(self._sock) is socket.socket and sys.platform == "linux":
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))

    def close(self) -> None:
        self._connection.disconnect()


def _leave_waiting_to_the_kernel(sock: socket.socket) -> None:
    """With a timeout of Python's own, each call asks the kernel twice, and hands the interpreter over twice."""
    seconds = sock.gettimeout()
    if seconds is not None:
        span = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
        sock.settimeout(None)


def _told(error: Exception) -> Exception:
    """The kernel reports a timeout as BlockingIOError, which means nothing to a reader."""
    return TimeoutError("no answer in time") if isinstance(error, BlockingIOError) else error


class RedisServer:
    """One server and the spare links to it."""

    def __init__(self, host: str, port: int, target: RedisUrl) -> None:
        self.name = f"{host}:{port}"
        self.host = host
        self.port = port
        self.server = ""  # the process that answered last
        self.former = ""  # the same process before it was promoted; "" if it was never a replica
        self.trusted = ""  # the server process that was checked last
        self.greeted: set[int] = set()  # lanes that this process is known to serve
        self.sick_until = 0.0  # by the monotonic clock: not worth a try before
        self._target = target
        self._spare: list[RedisConnection] = []
        self._doomed: list[tuple[str, int]] = []

    def borrow(self) -> RedisConnection:
        return self.spare() or self.open()

    def spare(self) -> RedisConnection | None:
        if self._doomed:  # nothing is tried again before they are killed, which opening another link does
            return None
        try:
            return self._spare.pop()
        except IndexError:  # also when another thread was quicker
            return None

    def give_back(self, link: RedisConnection) -> None:
        self._spare.append(link)

    def drop(self, link: RedisConnection, *, sent: bool) -> None:
        """The link broke, and so most likely did the spare ones."""
        if sent and link.id:
            self._doomed.append((self.server, link.id))
        self.greeted = set()
        self.close_spare()
        link.close()

    def close_spare(self) -> None:
        spare, self._spare = self._spare, []
        for link in spare:
            link.close()

    def abandon(self) -> list[RedisConnection]:
        spare, self._spare = self._spare, []
        return spare

    def connection(self, **changes: Any) -> RedisConnection:
        """A link that is not connected yet."""
        kind = SSLConnection if self._target.tls else Connection
        return RedisConnection(kind(host=self.host, port=self.port, **(self._target.settings | changes)))

    def open(self) -> RedisConnection:
        link = self.connection()
        try:
            link.connect()
            self._learn(link)
        except AuthenticationError as error:
            raise named("NOAUTH") from error
        except (Broken, RedisError, OSError) as error:
            link.close()
            reraise_signal_exception(error)
            raise Broken(error, sent=False) from error  # none of the caller's work has left yet
        except BaseException:
            link.close()
            raise
        return link

    def _learn(self, link: RedisConnection) -> None:
        """Learn which server this is. A replica is refused: its replies may be old."""
        number, text = link.ask(("CLIENT", "ID"), ("INFO",))
        if isinstance(text, Exception):
            raise understood(text)
        facts = facts_of(text)
        if facts.get("role") != "master" and not self._target.cluster:  # in a cluster it says MOVED by itself
            raise IsReplica(f"{self.name} is a replica")
        link.id = number if isinstance(number, int) else 0
        run, before = facts.get("run_id", ""), facts.get("master_replid2", "")
        server = f"{run}/{facts.get('master_replid', '')}"
        if server != self.server:
            self.server, self.greeted = server, set()
        self.former = f"{run}/{before}" if before.strip("0") else ""
        self._silence(link)

    def _silence(self, link: RedisConnection) -> None:
        """Kill our own broken connections on the server, before anything is tried again.

        What was sent on them may still lie in a buffer: an insert that arrives after its retry has landed
        and been removed would bring the record back. A restarted server numbers afresh: leave it alone.
        """
        doomed = list(self._doomed)
        ids = [number for server, number in doomed if server == self.server]
        if ids:
            link.ask(*(("CLIENT", "KILL", "ID", number) for number in ids))
        for one in doomed:  # not before the server has answered, and not those that broke meanwhile
            with contextlib.suppress(ValueError):  # another thread has done the same
                self._doomed.remove(one)


def facts_of(text: bytes) -> dict[str, str]:
    """INFO's answer."""
    lines: Iterable[str] = text.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
