"""Stand-in services in a process of their own; host names and TLS are redirected to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from ...errors import Misuse
from ...threads import at_fork
from ..socket_guard import host_written

__all__ = ["PlainTls", "Routes", "Service", "ServiceProcess", "ServiceWorld", "StandIn", "open_places"]


READING = 60.0  # seconds that a client may take
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Service(Protocol):
    """A stand-in service. `talk` serves one client, `command` answers the prover."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    def command(self, word: str, value: Any) -> Any: ...


class QuestionLine:
    """One connection for all questions of a process: connecting, which the network guard judges, takes longer than the
    answer. A forked process makes its own.
    """

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place
        self._mutex = threading.Lock()
        self._link: socket.socket | None = None
        at_fork(self, in_child=QuestionLine._reset_after_fork)

    def ask(self, word: str, value: Any) -> Any:
        with self._mutex:
            link, self._link = self._link or self._connected(), None
            try:
                link.sendall(msgspec.json.encode((word, value)) + b"\n")
                answer = _line_from(link)
            except BaseException:  # whoever asks next must not get the answer to this question
                link.close()
                raise
            self._link = link
        return msgspec.json.decode(answer)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def _connected(self) -> socket.socket:
        link = socket.socket()
        link.settimeout(READING)
        link.connect(self._place)
        return link

    def _reset_after_fork(self) -> None:
        self.close()  # in this process alone: the parent keeps its own end
        self._mutex, self._link = threading.Lock(), None


def _line_from(link: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        block = link.recv(65_536)
        if not block:
            raise ConnectionResetError("The stand-in has ended.")
        line += block
    return line


class ServiceProcess:
    """Two loopback ports: one for the clients, one for the prover's questions."""

    def __init__(self, service: Service) -> None:
        clients, questions = _listening(), _listening()
        self.port: int = clients.getsockname()[1]
        self._line = QuestionLine(questions.getsockname())
        watched, self._held = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child needs none of the parent's threads
            self._child = os.fork()
        if self._child == 0:
            os.close(self._held)
            _serve(service, clients, questions, watched)
        for end in (clients, questions):
            end.close()
        os.close(watched)

    def ask(self, word: str, value: Any = None) -> Any:
        """Ask from any process."""
        return self._line.ask(word, value)

    def close(self) -> None:
        self._line.close()
        os.close(self._held)
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


def _listening() -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen(128)
    return found


def _serve(service: Service, clients: socket.socket, questions: socket.socket, watched: int) -> None:
    """Never returns. Ends with the parent: only the parent keeps the other end of the pipe open."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # on an interrupt, the parent ends this process in order
    try:
        asyncio.run(_listen(service, clients, questions, watched))
    finally:
        os._exit(0)


async def _listen(service: Service, clients: socket.socket, questions: socket.socket, watched: int) -> None:
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, gone.set)
    await asyncio.start_server(_bounded(service.talk), sock=clients)
    await asyncio.start_server(
        _bounded(lambda reader, writer: _answer_all(service, reader, writer), None), sock=questions
    )
    await gone.wait()
    os._exit(0)  # at once, without errors about clients still connected


def _bounded(talk: Talk, seconds: float | None = READING) -> Talk:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, EOFError, TimeoutError, ValueError
        ):  # a client may die in the middle of a request
            await asyncio.wait_for(talk(reader, writer), seconds)
        with contextlib.suppress(OSError):
            writer.close()

    return one


async def _answer_all(service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while question := await reader.readline():
        word, value = msgspec.json.decode(question, type=tuple[str, Any])
        writer.write(msgspec.json.encode(service.command(word, value)) + b"\n")
        await writer.drain()


Leads = Callable[[Any], bool]


class PlainTls:
    """TLS without encryption, in this process and those forked from it.

    Not for clients with a TLS library of their own
    (pycurl, pyOpenSSL).

    Every client would have to trust a certificate; nothing leaves this machine, so there is nothing to encrypt.
    """

    def __init__(self, leads_here: Leads) -> None:
        context = ssl.SSLContext
        self._before = {"wrap_socket": context.wrap_socket, "wrap_bio": context.wrap_bio}
        setattr(context, "wrap_socket", _wrapping_sockets(context.wrap_socket, leads_here))  # noqa: B010 - a method
        setattr(context, "wrap_bio", _wrapping_bios(context.wrap_bio, leads_here))  # noqa: B010

    def close(self) -> None:
        for name, method in self._before.items():
            setattr(ssl.SSLContext, name, method)


def _wrapping_sockets(before: Callable[..., Any], leads_here: Leads) -> Callable[..., Any]:
    def wrap_socket(context: ssl.SSLContext, sock: socket.socket, *args: Any, **given: Any) -> Any:
        name = given.get("server_hostname")
        return PlainSocket.of(sock) if name and leads_here(name) else before(context, sock, *args, **given)

    return wrap_socket


def _wrapping_bios(before: Callable[..., Any], leads_here: Leads) -> Callable[..., Any]:
    def wrap_bio(
        context: ssl.SSLContext, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **given: Any
    ) -> Any:
        name = given.get("server_hostname") or (args[1] if len(args) > 1 else None)
        here = bool(name) and leads_here(name)
        return PlainObject(incoming, outgoing) if here else before(context, incoming, outgoing, *args, **given)

    return wrap_bio


class _PlainTlsConnection:
    """What clients ask about a connection that they believe to be encrypted."""

    server_side = False
    session = None

    def do_handshake(self, *args: Any) -> None: ...

    def version(self) -> str:
        return "TLSv1.3"

    def cipher(self) -> tuple[str, str, int]:
        return "plain", "TLSv1.3", 0

    def shared_ciphers(self) -> None:
        return None

    def get_channel_binding(self, kind: str = "") -> None:
        return None

    def compression(self) -> None:
        return None

    def selected_alpn_protocol(self) -> None:
        return None  # a client that could speak HTTP/2 speaks HTTP/1.1

    def getpeercert(self, binary_form: bool = False) -> Any:
        return b"" if binary_form else {}

    def get_unverified_chain(self) -> list[bytes]:
        return []

    def get_verified_chain(self) -> list[bytes]:
        return []

    def pending(self) -> int:
        return 0


class PlainSocket(_PlainTlsConnection, socket.socket):
    """For blocking clients."""

    @classmethod
    def of(cls, sock: socket.socket) -> PlainSocket:
        patience = sock.gettimeout()
        one = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        one.settimeout(patience)
        return one

    def unwrap(self) -> socket.socket:
        return self


class PlainObject(_PlainTlsConnection):
    """For clients with an event loop: bytes are copied from one buffer to the other."""

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        data = self._incoming.read(size if buffer is None else min(size, len(buffer)))
        if not data and not self._incoming.eof:
            raise ssl.SSLWantReadError("nothing has come yet")
        if buffer is None:
            return data
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return self._outgoing.write(data)

    def unwrap(self) -> None: ...


PORTS = {"http": 80, "https": 443, "smtp": 25, "smtps": 465, "submission": 587}
Place = tuple[str, int | None]  # a host, and one port of it or all


class Routes:
    """Redirected names, in this process and those forked from it. Not for programs that bypass Python's `socket`.

    An address among the names is redirected too, whether it is looked up first or not: event loops do not look it up.
    """

    def __init__(self, names: list[str], port: int) -> None:
        self._places = [_place(name) for name in names]
        self._port = port
        # Some clients keep the port they started with: the address alone must lead here.
        self._address = f"127.84.{port >> 8}.{port & 255}"
        self._look_up_before = socket.getaddrinfo
        self._methods_before = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex")}
        socket.getaddrinfo = self._look_up
        for name, method in self._methods_before.items():
            setattr(socket.socket, name, self._connecting(method))

    def close(self) -> None:
        socket.getaddrinfo = self._look_up_before
        for name, method in self._methods_before.items():
            setattr(socket.socket, name, method)

    def _look_up(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if self._leads_here(host, port):
            place = (self._address, _number(port) or 0)
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place)]
        return self._look_up_before(host, port, *args, **kwargs)

    def _connecting(self, before: Callable[..., Any]) -> Callable[[socket.socket, Any], Any]:
        def connect(one: socket.socket, address: Any) -> Any:
            return before(one, self._here(one.family) if self._is_ours(one, address) else address)

        return connect

    def _is_ours(self, one: socket.socket, address: Any) -> bool:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return False
        if not isinstance(address, tuple) or len(address) < 2 or address == ("127.0.0.1", self._port):
            return False
        return address[0] == self._address or self._leads_here(*address[:2])

    def _here(self, family: int) -> tuple[str, int]:
        return ("127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"), self._port

    def leads_here(self, host: Any) -> bool:
        """Whether some port of the host is redirected here."""
        return any(host_written(host) == place for place, _ in self._places)

    def _leads_here(self, host: Any, port: Any) -> bool:
        return any(host_written(host) == place and wanted in (None, _number(port)) for place, wanted in self._places)


def _place(name: str) -> Place:
    """Such as api.shop.test, localhost:25, 192.0.2.7:80, ::1 or [::1]:80."""
    text = name.lower().strip()
    host, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    if not host or "/" in name or (colon and not port.isdecimal()):
        raise Misuse(f"{name!r} does not name a host; write it without http://, such as api.shop.test or localhost:25.")
    return host_written(host), int(port) if colon else None


def _number(port: Any) -> int | None:
    return int(port) if str(port).isdecimal() else PORTS.get(str(port))


_open: list[ServiceProcess] = []


def open_places() -> list[str]:
    """Addresses of all open stand-ins: scenarios may connect to them."""
    return [f"127.0.0.1:{aside.port}" for aside in _open]


class ServiceWorld(ABC):
    """A world whose service runs in a process of its own."""

    def __init__(self, service: Service) -> None:
        self._aside = ServiceProcess(service)

    def reset(self) -> None:
        self._aside.ask("reset")

    def look(self) -> dict[str, int]:
        return msgspec.convert(self._aside.ask("look"), dict[str, int])

    def exchanges(self) -> list[str]:
        """Requests of the last scenario, in order."""
        return msgspec.convert(self._aside.ask("exchanges"), list[str])

    def lose(self, number: int) -> None:
        """Lose the answer to the n-th request of the next scenario, after it was carried out."""
        self._aside.ask("lose", number)

    @abstractmethod
    def close(self) -> None:
        """End the service, and let what led to it lead elsewhere again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StandIn(ServiceWorld):
    """While it is open, these names lead here, with TLS or without."""

    def __init__(self, hosts: list[str], service: Service) -> None:
        super().__init__(service)
        try:
            self._routes = Routes(hosts, self._aside.port)
        except Misuse:
            self._aside.close()
            raise
        self._tls = PlainTls(self._routes.leads_here)
        _open.append(self._aside)

    def close(self) -> None:
        self._tls.close()
        self._routes.close()
        self._aside.close()
        _open.remove(self._aside)
