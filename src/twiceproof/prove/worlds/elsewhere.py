"""Which hosts a play reaches that nobody stands in for: what happens there is real, and unseen."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["noting_elsewhere"]


@contextmanager
def noting_elsewhere(found: dict[str, None]) -> Iterator[None]:
    """Names that are looked up, as `host:port`, unless they lead to this machine."""
    before = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            places = before(host, port, *args, **kwargs)
        except OSError:
            found[_named(host, port)] = None
            raise
        if not all(_is_here(place[4]) for place in places):
            found[_named(host, port)] = None
        return places

    socket.getaddrinfo = look_up
    try:
        yield
    finally:
        socket.getaddrinfo = before


def _named(host: Any, port: Any) -> str:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
    return f"{name.lower().rstrip('.')}:{port}"


def _is_here(address: tuple[Any, ...]) -> bool:
    try:
        found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return False
    return found.is_loopback or found.is_unspecified
