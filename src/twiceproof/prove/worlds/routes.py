"""Names that lead elsewhere: what a program looks up is answered with a loopback port of ours."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ...errors import Misuse

__all__ = ["Routes"]

PORTS = {"http": 80, "https": 443, "smtp": 25, "smtps": 465, "submission": 587}
Place = tuple[str, int | None]  # a host, and one port of it or all


class Routes:
    """In this process and those forked from it. A program that connects without Python's `socket` is not met."""

    def __init__(self, names: list[str], port: int) -> None:
        self._places = [_place(name) for name in names]
        self._port = port
        # Some clients keep the port they began with: the address alone must lead here.
        self._address = f"127.84.{port >> 8}.{port & 255}"
        self._look_up_before, self._connect_before = socket.getaddrinfo, socket.socket.connect
        socket.getaddrinfo = self._look_up
        setattr(socket.socket, "connect", self._connecting())  # noqa: B010 - mypy lets nobody assign a method

    def close(self) -> None:
        socket.getaddrinfo = self._look_up_before
        setattr(socket.socket, "connect", self._connect_before)  # noqa: B010

    def _look_up(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if self._leads_here(host, port):
            place = (self._address, _number(port) or 0)
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place)]
        return self._look_up_before(host, port, *args, **kwargs)

    def _connecting(self) -> Callable[[socket.socket, Any], None]:
        before, ours, port = self._connect_before, self._address, self._port

        def connect(one: socket.socket, address: Any) -> None:
            before(one, ("127.0.0.1", port) if isinstance(address, tuple) and address[0] == ours else address)

        return connect

    def leads_here(self, host: Any) -> bool:
        """Whether some port of it does."""
        return any(_written(host) == place for place, _ in self._places)

    def _leads_here(self, host: Any, port: Any) -> bool:
        return any(_written(host) == place and wanted in (None, _number(port)) for place, wanted in self._places)


def _written(host: Any) -> str:
    return (host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "")).lower().rstrip(".")


def _place(name: str) -> Place:
    host, colon, port = name.lower().strip().partition(":")
    if not host or "/" in name or (colon and not port.isdecimal()):
        raise Misuse(f"{name!r} does not name a host; write it without http://, such as api.shop.test or localhost:25.")
    return host, int(port) if colon else None


def _number(port: Any) -> int | None:
    return int(port) if str(port).isdecimal() else PORTS.get(str(port))
