"""Names that lead elsewhere: what a program looks up is answered with a loopback port of ours."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ...errors import Misuse
from ..guard.places import host_written

__all__ = ["Routes"]

PORTS = {"http": 80, "https": 443, "smtp": 25, "smtps": 465, "submission": 587}
Place = tuple[str, int | None]  # a host, and one port of it or all


class Routes:
    """In this process and those forked from it. A program that connects without Python's `socket` is not met.

    An address among the names is met too, whether it is looked up first or not: event loops do not.
    """

    def __init__(self, names: list[str], port: int) -> None:
        self._places = [_place(name) for name in names]
        self._port = port
        # Some clients keep the port they began with: the address alone must lead here.
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
        """Whether some port of it does."""
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
