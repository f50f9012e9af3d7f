"""Addresses as text, such as `127.0.0.1:80` or `unix:/run/x.sock`, and which of them a scenario may connect to."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Collection
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, Literal

__all__ = ["AllowedDestinations", "Judgement", "host_written", "place_in_memory", "place_of"]


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
