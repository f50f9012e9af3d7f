"""SSRF protection: decides which URLs and addresses may be called.

Only globally routable addresses are allowed, by our own list: `ipaddress.is_global` has changed between Python
releases. Addresses that embed another one (v4-mapped, 6to4, Teredo, NAT64) are refused, because a gateway may unwrap
them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from msgspec import Struct

from ..errors import Misuse

__all__ = ["Allowed", "GuardedUrl", "NotAllowed", "check_addresses", "read_target", "refuse_address"]


Address = IPv4Address | IPv6Address

# IANA's special-purpose registries, and addresses that clouds use internally.
CLOSED_V4 = tuple(
    (IPv4Network(block), what)
    for block, what in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier (CGNAT); a cloud's metadata may be there"),
        ("127.0.0.0/8", "this machine"),
        ("168.63.129.16/32", "used by a cloud internally"),
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
OPEN_V6 = IPv6Network("2000::/3")  # everything else is unassigned, local, multicast, mapped or translated
CLOSED_V6 = tuple(
    (IPv6Network(block), what)
    for block, what in (
        ("2001::/23", "for protocols: Teredo, ORCHID, benchmarks"),
        ("2001:db8::/32", "for examples"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "AS112"),
        ("3fff::/20", "for examples"),
        ("3ffe::/16", "6bone, obsolete"),
    )
)


class Allowed:
    """Networks (`10.0.0.0/8`) and hosts (`hooks.internal`) that the user permits."""

    def __init__(self, names: Collection[str] = ()) -> None:
        if isinstance(names, str):
            raise Misuse(f'allow={names!r} is a string, not a list; write allow=("{names}",).')
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

    def permits(self, host: str, address: Address) -> bool:
        """Whether the address is permitted. A permitted host may have any address."""
        return host in self.hosts or any(address in network for network in self.networks)


NOTHING = Allowed()


def refuse_address(text: str, host: str = "", allowed: Allowed = NOTHING) -> str:
    """Return why this address must not be connected to, or ""."""
    try:
        address = ip_address(text)
    except ValueError:
        return f"{text[:60]!r} is not an address"
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return f"{address} is link-scoped"
    if allowed.permits(host, address):
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


LONGEST = 2_048
PORTS = {"https": 443, "http": 80}
METADATA = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata.azure.com",
        "metadata.azure.internal",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "metadata.tencentyun.com",
        "metadata.oraclecloud.com",
        "rancher-metadata",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    }
)
# Names that never belong to the public internet, whatever a local resolver returns.
LOCAL = (
    "localhost",
    "local",
    "localdomain",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "private",
    "home.arpa",
    "onion",
    "invalid",
    "test",
    "example",
    "in-addr.arpa",
    "ip6.arpa",
    "svc",
    "svc.cluster.local",
)

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_DOTTED = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
# Some parsers read a host with such an ending as an IPv4 address: 2130706433, 0x7f.1, 0177.0.0.1, 127.1.
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


class NotAllowed(Misuse):
    """The URL may not be called. Carries `url` without its query, and `reason`."""


def check_addresses(host: str, addresses: Iterable[str], allowed: Allowed = NOTHING) -> None:
    """Refuse the name if any of its addresses is forbidden, whichever would be connected to."""
    for address in addresses:
        why = refuse_address(address, host, allowed)
        if why:
            raise NotAllowed(
                f"{host} is not called: {why}. Use a public address, or permit this one with allow=.",
                url=host,
                reason=why,
            )


class GuardedUrl(Struct, frozen=True):
    """A parsed URL. `host` is lower case and ASCII; `path` includes the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_literal(self) -> bool:
        return ":" in self.host or _DOTTED.fullmatch(self.host) is not None

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def read_target(url: str, allowed: Allowed, *, http: bool = False, ports: Collection[int] | None = None) -> GuardedUrl:
    """Parse a URL, or raise NotAllowed. `http` permits plain http; `ports` restricts the ports."""
    why = _refuse_form(url)
    if why:
        raise _not_allowed(url, why)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _not_allowed(url, "it cannot be read as a URL") from None
    host = _host(parts.netloc)
    why = (
        _refuse_scheme(parts.scheme, http)
        or ("it carries a user name or password" if "@" in parts.netloc else "")
        or ("it has a fragment" if "#" in url else "")
    )
    if not why and (inside := _refuse_host(host, allowed)):
        raise _not_allowed(url, inside, permits=":" not in host and not _refuse_disguise(host))
    port = PORTS.get(parts.scheme, 0) if port is None else port
    if not why and (port < 1 or (ports is not None and port not in ports)):
        why = f"port {port} is not permitted"
    if why:
        raise _not_allowed(url, why)
    query = f"?{parts.query}" if parts.query else ""
    return GuardedUrl(parts.scheme, host, port, (parts.path or "/") + query)


def _refuse_form(url: object) -> str:
    """Refuse URLs that two parsers might read differently, before any parser sees them."""
    if not isinstance(url, str) or not url:
        return "it is not a URL"
    if len(url) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    if not url.isascii():
        return "it has characters outside ASCII; write the host in punycode (xn--…) and percent-encode the rest"
    if any(letter <= " " or letter == "\x7f" for letter in url):
        return "it has spaces or control characters"
    if "\\" in url:
        return "it has a backslash"
    return ""


def _refuse_scheme(scheme: str, http: bool) -> str:
    if scheme == "https" or (http and scheme == "http"):
        return ""
    return "only https is permitted"


def _host(netloc: str) -> str:
    """Return the host in lower case. Brackets around anything but an IPv6 address leave a colon, which is refused."""
    host = netloc.rpartition("@")[2].lower()
    if not host.startswith("["):
        return host.partition(":")[0]
    inside, _, rest = host[1:].partition("]")
    return inside if ":" in inside and (not rest or rest.startswith(":")) else f":{inside}"


def _refuse_host(host: str, allowed: Allowed) -> str:
    if ":" in host:
        return _refuse_v6(host)
    if _DOTTED.fullmatch(host) or host in allowed.hosts:
        return ""  # an address itself is checked when it is connected to
    return _refuse_disguise(host) or _refuse_name(host)


def _refuse_disguise(host: str) -> str:
    if not host:
        return "it names no host"
    if host.endswith("."):
        return "its host ends with a dot"
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return f"{host[:60]} is a disguised address or not a host; write an address as four decimal numbers"
    return ""


def _refuse_v6(host: str) -> str:
    try:
        address = IPv6Address(host)
    except ValueError:
        return f"{host[:60]!r} is not an address"
    return "its address is link-scoped" if address.scope_id is not None else ""


def _refuse_name(host: str) -> str:
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return f"{host[:60]!r} is not a host name"
    if host in METADATA:
        return f"{host} is a cloud's metadata service"
    if len(labels) == 1 or any(host == name or host.endswith(f".{name}") for name in LOCAL):
        return f"{host} is a name of a local network"
    return ""


def _not_allowed(url: object, why: str, *, permits: bool = False) -> NotAllowed:
    """`permits`: only the host is refused, so naming it in allow= helps."""
    shown = str(url).partition("?")[0].partition("#")[0][:120] if "@" not in str(url) else "the URL"
    move = "Use a public https address, or permit this one with allow=" if permits else "Write it as https://HOST/PATH"
    return NotAllowed(f"{shown!r} is not called: {why}. {move}.", url=shown, reason=why)
