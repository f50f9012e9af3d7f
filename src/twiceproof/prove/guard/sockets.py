"""What Python knows about a scenario's connections: names before they are looked up, and its own listeners.

Where the kernel does not decide, connections of Python's sockets and of psycopg are checked here.
"""

from __future__ import annotations

import _socket
import errno
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from .places import AllowedDestinations, host_written, place_of

__all__ = ["SocketGuard", "import_libpq"]


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
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"prove lets no play connect to {place}")

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
        raise socket.gaierror(socket.EAI_NONAME, f"prove lets no play look up {place}")

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
