"""The verdict on an address that somebody else chose: may we connect to it?

Only what is globally routable on the public internet, by our own list: `ipaddress.is_global` has changed between Python
releases. What carries another address inside (v4-mapped, 6to4, Teredo, NAT64) is judged as what it is: refused, for a
gateway on the way may unwrap it.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ..errors import Misuse

__all__ = ["Allowed", "refuse_address"]

Address = IPv4Address | IPv6Address

# IANA's special-purpose registries, and what clouds put into them.
CLOSED_V4 = tuple(
    (IPv4Network(block), what)
    for block, what in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier (CGNAT); a cloud's metadata may be there"),
        ("127.0.0.0/8", "this machine"),
        ("168.63.129.16/32", "a cloud's own"),
        ("169.254.0.0/16", "link-local; a cloud's metadata is there"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "for protocols"),
        ("192.0.2.0/24", "for examples"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4 relays"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for examples"),
        ("203.0.113.0/24", "for examples"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved, or broadcast"),
    )
)
OPEN_V6 = IPv6Network("2000::/3")  # all else is unassigned, local, multicast, mapped or translated
CLOSED_V6 = tuple(
    (IPv6Network(block), what)
    for block, what in (
        ("2001::/23", "for protocols: Teredo, ORCHID, benchmarks"),
        ("2001:db8::/32", "for examples"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "AS112"),
        ("3fff::/20", "for examples"),
        ("3ffe::/16", "6bone, gone"),
    )
)


class Allowed:
    """What a user opened by name: networks (`10.0.0.0/8`) and hosts (`hooks.internal`)."""

    def __init__(self, names: Collection[str] = ()) -> None:
        if isinstance(names, str):
            raise Misuse(f'allow={names!r} is one text, not a list; write allow=("{names}",).')
        self.networks: list[IPv4Network | IPv6Network] = []
        self.hosts: set[str] = set()
        for name in names:
            self._add(name)

    def _add(self, name: str) -> None:
        try:
            self.networks.append(ip_network(name))
        except ValueError:
            if "/" in name or ":" in name or not name.strip(".") or name != name.strip():
                raise Misuse(f'allow has {name!r}; write a network like "10.0.0.0/8", or a host.') from None
            self.hosts.add(name.lower().rstrip("."))

    def opens(self, host: str, address: Address) -> bool:
        """A host that was named may be anywhere: who names it says so."""
        return host in self.hosts or any(address in network for network in self.networks)


NOTHING = Allowed()


def refuse_address(text: str, host: str = "", allowed: Allowed = NOTHING) -> str:
    """Why not to connect to this address; "" if there is no reason not to."""
    try:
        address = ip_address(text)
    except ValueError:
        return f"{text[:60]!r} is no address"
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return f"{address} is of one link only"
    if allowed.opens(host, address):
        return ""
    what = _what_v4(address) if isinstance(address, IPv4Address) else _what_v6(address)
    return f"{address} is not on the public internet ({what})" if what else ""


def _what_v4(address: IPv4Address) -> str:
    return next((what for network, what in CLOSED_V4 if address in network), "")


def _what_v6(address: IPv6Address) -> str:
    if address not in OPEN_V6:
        return _local_v6(address)
    return next((what for network, what in CLOSED_V6 if address in network), "")


def _local_v6(address: IPv6Address) -> str:
    if address.ipv4_mapped is not None:
        return f"{address.ipv4_mapped}, mapped"
    if address in IPv6Network("64:ff9b::/96") or address in IPv6Network("64:ff9b:1::/48"):
        return "translated to IPv4 (NAT64)"
    if address.is_loopback or address.is_unspecified:
        return "this machine"
    if address.is_link_local or address.is_site_local or address in IPv6Network("fc00::/7"):
        return "private"
    return "multicast" if address.is_multicast else "not assigned"
