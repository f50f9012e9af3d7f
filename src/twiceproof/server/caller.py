"""Where a caller calls from: the address that a proxy names, and whom it shares a limit with."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, IPv6Network, ip_address

__all__ = ["address_in", "neighbourhood"]

WITH_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d+)?|(\d+\.\d+\.\d+\.\d+):\d+", re.ASCII)


def address_in(text: str) -> str | None:
    """The address, without a port: some proxies add it, and a caller has many. None: it is no address."""
    text = text.strip()
    found = WITH_PORT.fullmatch(text)
    try:
        return str(ip_address((found[1] or found[2]) if found else text))
    except ValueError:
        return None


def neighbourhood(address: str) -> str:
    """One customer has a whole /64 of IPv6: with a limit for each address of it, there would be none."""
    if ":" not in address:
        return address
    try:
        known = IPv6Address(address)
    except ValueError:
        return address
    return str(known.ipv4_mapped or IPv6Network((known, 64), strict=False))
