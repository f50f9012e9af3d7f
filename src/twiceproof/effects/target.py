"""Where a callback is to go: a URL that somebody else chose, read strictly. What can be read in two ways is refused."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from msgspec import Struct

from ..errors import Misuse
from .address import Allowed

__all__ = ["NotAllowed", "Target", "read_target"]

LONGEST = 2_048
PORTS = {"https": 443, "http": 80}
METADATA = frozenset(
    {
        "metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal",
        "metadata.azure.com", "metadata.azure.internal", "metadata.packet.net", "metadata.platformequinix.com",
        "metadata.tencentyun.com", "metadata.oraclecloud.com", "rancher-metadata", "kubernetes", "kubernetes.default",
        "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
    }
)  # fmt: skip
# Names that never lead to the public internet, whatever a resolver on this network makes of them.
LOCAL = ("localhost", "local", "localdomain", "internal", "intranet", "lan", "home", "corp", "private", "home.arpa",
         "onion", "invalid", "test", "example", "in-addr.arpa", "ip6.arpa", "svc", "svc.cluster.local")  # fmt: skip

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_DOTTED = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
# A host that ends so is read as an IPv4 address by some: 2130706433, 0x7f.1, 0177.0.0.1, 127.1.
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


class NotAllowed(Misuse):
    """The address may not be called. Carries `url` without its query, and `reason`."""


class Target(Struct, frozen=True):
    """A URL, taken apart. `host` is lower case and ASCII; `path` has the query."""

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


def read_target(
    url: str, allowed: Allowed, *, http: bool = False, ports: Collection[int] | None = None
) -> Target:  # fmt: skip
    """Raises NotAllowed, saying why. `http`: plain http is taken too. `ports`: only these."""
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
        raise _not_allowed(url, inside, opens=":" not in host and not _refuse_disguise(host))
    port = PORTS.get(parts.scheme, 0) if port is None else port
    if not why and (port < 1 or (ports is not None and port not in ports)):
        why = f"port {port} is not open to callbacks"
    if why:
        raise _not_allowed(url, why)
    query = f"?{parts.query}" if parts.query else ""
    return Target(parts.scheme, host, port, (parts.path or "/") + query)


def _refuse_form(url: object) -> str:
    """Before any parser sees it: what two parsers read differently is not read at all."""
    if not isinstance(url, str) or not url:
        return "it is not a URL"
    if len(url) > LONGEST:
        return f"it is longer than {LONGEST} letters"
    if not url.isascii():
        return "it has letters outside ASCII; write the host in punycode (xn--…) and percent-encode the rest"
    if any(letter <= " " or letter == "\x7f" for letter in url):
        return "it has spaces or control characters"
    if "\\" in url:
        return "it has a backslash"
    return ""


def _refuse_scheme(scheme: str, http: bool) -> str:
    if scheme == "https" or (http and scheme == "http"):
        return ""
    return "only https is sent to"


def _host(netloc: str) -> str:
    """Lower case. What stands in brackets and is no IPv6 address keeps a colon, and is refused as one."""
    host = netloc.rpartition("@")[2].lower()
    if not host.startswith("["):
        return host.partition(":")[0]
    inside, _, rest = host[1:].partition("]")
    return inside if ":" in inside and (not rest or rest.startswith(":")) else f":{inside}"


def _refuse_host(host: str, allowed: Allowed) -> str:
    if ":" in host:
        return _refuse_v6(host)
    if _DOTTED.fullmatch(host) or host in allowed.hosts:
        return ""  # an address itself is judged when it is connected to
    return _refuse_disguise(host) or _refuse_name(host)


def _refuse_disguise(host: str) -> str:
    if not host:
        return "it names no host"
    if host.endswith("."):
        return "its host ends with a dot"
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return f"{host[:60]} is an address in disguise, or no host; write an address as four plain numbers"
    return ""


def _refuse_v6(host: str) -> str:
    try:
        address = IPv6Address(host)
    except ValueError:
        return f"{host[:60]!r} is no address"
    return "its address is of one link only" if address.scope_id is not None else ""


def _refuse_name(host: str) -> str:
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return f"{host[:60]!r} is no host name"
    if host in METADATA:
        return f"{host} is a cloud's metadata"
    if len(labels) == 1 or any(host == name or host.endswith(f".{name}") for name in LOCAL):
        return f"{host} is a name of a local network"
    return ""


def _not_allowed(url: object, why: str, *, opens: bool = False) -> NotAllowed:
    """`opens`: the host stands in the way, and nothing else: to name it helps."""
    shown = str(url).partition("?")[0].partition("#")[0][:120] if "@" not in str(url) else "the URL"
    move = "Use a public https address, or open this one with allow=" if opens else "Write it as https://HOST/PATH"
    return NotAllowed(f"{shown!r} is not called: {why}. {move}.", url=shown, reason=why)
