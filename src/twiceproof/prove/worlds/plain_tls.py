"""TLS to a stand-in, without TLS: what a client would encrypt for one of our names stays here, and is plain."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

__all__ = ["PlainTls"]

Leads = Callable[[Any], bool]


class PlainTls:
    """In this process and those forked from it. A client with a TLS of its own (pycurl, pyOpenSSL) is not met.

    A certificate would have to be trusted by every client; nothing leaves this machine, so there is nothing to encrypt.
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


class _Answers:
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


class PlainSocket(_Answers, socket.socket):
    """For blocking clients."""

    @classmethod
    def of(cls, sock: socket.socket) -> PlainSocket:
        patience = sock.gettimeout()
        one = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        one.settimeout(patience)
        return one

    def unwrap(self) -> socket.socket:
        return self


class PlainObject(_Answers):
    """For clients with an event loop: bytes go from one buffer to the other as they are."""

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
