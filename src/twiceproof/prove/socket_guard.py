"""Which addresses a scenario may connect to, and what Python knows about its connections: names, its own listeners.

Where the kernel does not decide, connections of Python's sockets and of psycopg are checked here.
"""

from __future__ import annotations

import _socket
import errno
import ipaddress
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

__all__ = [
    "AllowedDestinations",
    "Judgement",
    "SocketGuard",
    "host_written",
    "import_libpq",
    "place_in_memory",
    "place_of",
]


Judgement = Literal["yes", "no", "quietly no"]
UNIX = "unix:"
# Name services and the system log: used by libraries on their own, without effects.
SYSTEM = tuple(
    UNIX + path
    for path in (
        "/var/run/nscd/",
        "/run/nscd/",
        "/run/systemd/resolve/",
        "/run/systemd/userdb/",
        "/run/systemd/journal/",
        "/run/nslcd/",
        "/var/run/nslcd/",
        "/var/lib/sss/pipes/",
        "/dev/log",
    )
)
WHOLE_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a connection to them ends


def place_of(family: int, address: Any) -> str | None:
    """The text of an address as Python's sockets take it; None for families that lead nowhere, and for names."""
    if address is None:
        return None
    if family == socket.AF_UNIX:
        text = address.decode("utf-8", "replace") if isinstance(address, bytes) else str(address)
        return UNIX + text.replace("\0", "@", 1)
    if family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple) and len(address) > 1:
        host = _number(address[0])
        return f"{host}:{address[1]}" if host else None
    return None


def place_in_memory(raw: bytes) -> str | None:
    """The text of an address as the kernel takes it."""
    if len(raw) < 2:
        return None
    (family,) = struct.unpack_from("=H", raw)
    if family == socket.AF_UNIX:
        path = raw[2:] if raw[2:3] == b"\0" else raw[2:].split(b"\0")[0]
        return place_of(family, path) if path else None
    if family == socket.AF_INET and len(raw) >= 8:
        return place_of(family, (socket.inet_ntop(family, raw[4:8]), *struct.unpack_from("!H", raw, 2)))
    if family == socket.AF_INET6 and len(raw) >= 24:
        return place_of(family, (socket.inet_ntop(family, raw[8:24]), *struct.unpack_from("!H", raw, 2)))
    return None


def host_written(host: Any) -> str:
    """A name or an address, in one notation."""
    name = host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else str(host or "")
    name = name.lower().rstrip(".")
    return (_number(name.strip("[]")) or name).strip("[]")


def _number(host: Any) -> str | None:
    """The address, an IPv6 one in brackets; None if it is a name."""
    text = host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else str(host)
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    found = (found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None) or found
    number = WHOLE_MACHINE.get(str(found), str(found))
    return f"[{number}]" if ":" in number else number


class AllowedDestinations:
    """Worlds, what the user calls `real`, and what the scenario itself listens on.

    `named`: hosts, host:port, or paths.
    """

    def __init__(self, named: Collection[str] = ()) -> None:
        self._named = {_said(one) for one in named if one}
        self._places: set[str] = set()
        self._here = {"", "localhost", host_written(socket.gethostname())}
        self._name_servers = _name_servers()
        self._asks_name_servers = False
        for one in list(self._named):
            self._resolve(one)

    def _resolve(self, named: str) -> None:
        """For clients that look names up themselves. A name that is not found now may be found later."""
        host, colon, port = named.rpartition(":") if not _number(named.strip("[]")) else ("", "", "")
        name = host if colon else port
        if not name or named.startswith(UNIX) or _number(name.strip("[]")):
            return
        self._asks_name_servers = True
        with suppress(OSError):
            for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
                number = _number(found[4][0])
                self._named.add(f"{number}:{port}" if colon else str(number))

    def copy(self) -> AllowedDestinations:
        other = copy(self)
        other._named, other._places = set(self._named), set(self._places)
        return other

    def add(self, place: str) -> None:
        self._places.add(place)

    def add_name(self, host: Any) -> None:
        self._named.add(host_written(host))

    def may_look_up(self, host: Any, port: Any) -> bool:
        """An address needs no look-up: its connection is checked."""
        name = host_written(host)
        return name in self._here or name.endswith(".localhost") or bool(_number(name)) or self.names(host, port)

    def names(self, host: Any, port: Any) -> bool:
        name = host_written(host)
        return name in self._named or f"{name}:{port}" in self._named

    def judge(self, place: str) -> Judgement:
        if place in self._places or place in self._named or place.startswith(SYSTEM):
            return "yes"
        if place.startswith(UNIX):
            return "no"
        host, _, port = place.rpartition(":")
        if host in self._named or port == "0":  # nothing is sent to port 0: look-ups compare addresses this way
            return "yes"
        if port == "53" and host in self._name_servers:
            return "yes" if self._asks_name_servers else "quietly no"
        return "no"


def _said(name: str) -> str:
    """In the notation of places: `--real 127.0.0.1`, `db.test:5432`, `::1`, `[::1]:80` or `/run/x.sock`."""
    if name.startswith(("/", "@")):
        return UNIX + name
    if name.startswith(UNIX):
        return name
    text = name.lower().strip().rstrip(".")
    if number := _number(text.strip("[]")):
        return number
    host, colon, port = text.rpartition(":")
    return f"{_number(host.strip('[]')) or host}:{port}" if colon and port.isdecimal() else text


def _name_servers() -> set[str]:
    """As configured in this machine's resolver."""
    try:
        lines = Path("/etc/resolv.conf").read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    words = [line.split() for line in lines]
    return {_number(line[1]) or "" for line in words if len(line) > 1 and line[0] == "nameserver"}


STANDARD = 2  # descriptors up to this one are the program's input and output
LIBPQ = "psycopg.generators"


class SocketGuard:
    """In the scenario's process, permanently. `tell` takes a sign and a place: + allowed, - refused, ~ cut.

    = is an allowed name; < and > mark the start and end of a look-up of an allowed name by a thread.
    """

    def __init__(self, allowed: AllowedDestinations, tell: Callable[[str, str], None], *, learning: bool) -> None:
        self._allowed = allowed
        self._tell = tell
        self._learning = learning
        self._bound: WeakSet[socket.socket] = WeakSet()
        self._judges = True

    def enter(self, *, judges: bool) -> None:
        self._judges = judges
        sys.addaudithook(self._heard)
        self._wrap_look_ups()
        self._wrap_connections()
        if judges:
            self._wrap_libpq()

    # -- connections -----------------------------------------------------------------------------

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        if not event.startswith("socket."):
            return
        if event == "socket.bind":
            with suppress(TypeError):  # a socket of the C module's own class
                self._bound.add(given[0])
            if (place := place_of(given[0].family, given[1])) is not None:
                self._allow(place)
        elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            self._connect(given[0].family, given[1])
        elif event == "socket.gethostbyname" and not self._allowed.may_look_up(given[0], ""):
            self._refuse_name(given[0], "")

    def _connect(self, family: int, address: Any) -> None:
        place = place_of(family, address)
        if place is None or self._allowed.judge(place) == "yes":
            return
        if self._learning or place in self._own():
            self._allow(place)
        elif self._judges:
            self._refuse(place)

    def _own(self) -> Iterator[str]:
        for one in list(self._bound):
            with suppress(OSError):
                yield place_of(one.family, one.getsockname()) or ""

    def _allow(self, place: str) -> None:
        self._allowed.add(place)
        self._tell("+", place)

    def _refuse(self, place: str) -> None:
        if self._allowed.judge(place) == "no":
            self._tell("-", place)
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"prove lets no scenario connect to {place}")

    # -- names -----------------------------------------------------------------------------------

    def _wrap_look_ups(self) -> None:
        """Wraps below `socket.getaddrinfo`: names of worlds are answered there, and never get here."""
        before = _socket.getaddrinfo

        def look_up(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            self._judge_name(host, port)
            thread = str(threading.get_native_id())
            self._tell("<", thread)
            try:
                found = before(host, port, *args, **kwargs)
            finally:
                self._tell(">", thread)
            if self._allowed.names(host, port):
                for place in (place_of(one[0], one[4]) for one in found):
                    self._allow(place or "")
            return found

        setattr(_socket, "getaddrinfo", look_up)  # noqa: B010 - mypy does not allow assigning to a module

    def _wrap_connections(self) -> None:
        """A name given to the socket itself is looked up in C, where nothing could be checked."""
        for method in ("connect", "connect_ex"):
            before = getattr(socket.socket, method)
            setattr(socket.socket, method, self._naming(before))

    def _naming(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def connect(one: socket.socket, address: Any) -> Any:
            if one.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple) and len(address) > 1:
                address = (self._number(one, *address[:2]), *address[1:])
            return before(one, address)

        return connect

    def _number(self, one: socket.socket, host: Any, port: Any) -> Any:
        if place_of(one.family, (host, port)) is not None:
            return host
        return socket.getaddrinfo(host, port, one.family)[0][4][0]

    def _judge_name(self, host: Any, port: Any) -> None:
        if self._learning:
            self._allowed.add_name(host)
            self._tell("=", host_written(host))
        elif not self._allowed.may_look_up(host, port):
            self._refuse_name(host, port)

    def _refuse_name(self, host: Any, port: Any) -> None:
        place = f"{host_written(host)}:{port}".rstrip(":")
        self._tell("-", place)
        raise socket.gaierror(socket.EAI_NONAME, f"prove lets no scenario look up {place}")

    # -- libpq -----------------------------------------------------------------------------------

    def _wrap_libpq(self) -> None:
        generators = sys.modules.get(LIBPQ)
        if generators is None:
            return
        before = generators.connect

        def connect(conninfo: str, *args: Any, **kwargs: Any) -> Any:
            for family, address in _servers(conninfo):
                if family == socket.AF_UNSPEC:
                    self._judge_name(*address)
                else:
                    self._connect(family, address)
            return before(conninfo, *args, **kwargs)

        setattr(generators, "connect", connect)  # noqa: B010 - mypy does not allow assigning to a module

    # -- connections from before -----------------------------------------------------------------

    def cut_earlier(self) -> None:
        """Replace inherited connections by dead ends: their owner in the parent keeps them."""
        for descriptor in _sockets():
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
                place = place_of(one.family, one.getpeername())
                if place not in (None, "unix:") and self._allowed.judge(str(place)) == "no":
                    self._tell("~", str(place))
                    _dead_end(descriptor)


def _sockets() -> list[int]:
    with suppress(OSError):
        directory = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
        found = [int(path.name) for path in directory.iterdir()]
        return [one for one in found if one > STANDARD and _is_socket(one)]
    return []


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _dead_end(descriptor: int) -> None:
    one, other = socket.socketpair()
    other.close()
    os.dup2(one.fileno(), descriptor, inheritable=False)
    one.close()


def import_libpq() -> None:
    """Import it before the scenarios start: a later import could not be wrapped."""
    with suppress(ImportError):
        __import__(LIBPQ)


def _servers(conninfo: str) -> Iterator[tuple[int, Any]]:
    """Where libpq would connect to, by its arguments and the environment; a name has no family."""
    from psycopg import pq
    from psycopg.conninfo import conninfo_to_dict

    known = {one.keyword.decode(): one.val.decode() for one in pq.Conninfo.get_defaults() if one.val}
    given = {**known, **{name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}}
    ports = given.get("port", "5432").split(",")
    hosts = (given.get("hostaddr") or given.get("host") or "/tmp,/var/run/postgresql").split(",")  # noqa: S108
    for number, host in enumerate(hosts):
        port = ports[min(number, len(ports) - 1)]
        if host.startswith(("/", "@")):
            yield socket.AF_UNIX, f"{host}/.s.PGSQL.{port}"
        elif place_of(socket.AF_INET, (host, port)) is not None:
            yield socket.AF_INET, (host, port)
        else:
            yield socket.AF_UNSPEC, (host, port)
