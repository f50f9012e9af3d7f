"""Who calls, loopback trust, client addresses, who may call what."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Literal, NamedTuple

from ..clock import Clock
from ..errors import Misuse
from ..operations import await_
from ..stores.base import Store
from . import problems
from .request import RequestRefused
from .routing import ApiRoute
from .tokens import PREFIX, Principal, Scope, any_token, anybody, find_token, operator, principal_of

__all__ = [
    "FRESH",
    "POLICY",
    "Access",
    "Trust",
    "Via",
    "address_in",
    "allows",
    "is_loopback",
    "rate_limit_subject",
    "require_policy",
    "sign_of_a_proxy",
]


Trust = Literal["nobody", "loopback", "everybody"]

FRESH = 3.0  # seconds for which what was found is believed: a revoked token is good for no longer
# What proxies, tunnels and content networks add. Whoever calls through one is not on this machine, though the proxy is.
FORWARDED = frozenset(
    (
        b"forwarded",
        b"via",
        b"x-real-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-proxyuser-ip",
        b"true-client-ip",
        b"x-original-host",
        b"x-original-url",
        b"x-original-forwarded-for",
        b"x-originating-ip",
        b"x-remote-ip",
        b"x-scheme",
        b"x-nginx-proxy",
        b"x-varnish",
        b"x-haproxy-server-state",
        b"x-cloud-trace-context",
        b"cdn-loop",
        b"max-forwards",
        b"surrogate-capability",
        b"x-request-start",
        b"x-ssl-client-verify",
    )
)
FORWARDED_BY = (
    b"x-forwarded",
    b"cf-",
    b"x-amzn-",
    b"x-amz-cf-",
    b"x-azure-",
    b"x-arr-",
    b"x-appengine-",
    b"x-envoy-",
    b"fly-",
    b"x-vercel-",
    b"x-akamai-",
    b"akamai-",
    b"fastly-",
    b"x-real-",
    b"x-proxy-",
    b"ngrok-",
    b"tailscale-",
    b"x-traefik-",
)
OLD = ("1.0", "0.9")
MOST = 4_096  # tokens remembered, wrong ones among them


class Via(NamedTuple):
    """How a request came: who holds the other end of the connection, and in which version of HTTP it speaks."""

    client: str = ""  # "": not known, as of a socket that has no address
    version: str = "1.1"


HERE = Via()


@lru_cache(1_024)  # asked at every request, and mostly of the same few
def is_loopback(host: str) -> bool:
    """An address of this machine, or its name. Whose `127.0.0.1.example.com` is, only its owner knows."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """`trust`: who is believed to be the operator while no token was ever made."""

    def __init__(self, store: Store, tenant: str, clock: Clock, *, trust: Trust) -> None:
        self._store = store
        self._clock = clock
        self._trust = trust
        self.anybody = anybody(tenant)
        self._operator = operator(tenant)
        self._known: OrderedDict[bytes, tuple[Principal | None, float]] = OrderedDict()
        self._open_until = 0.0

    async def principal(self, headers: Mapping[bytes, bytes], scope: Scope, via: Via = HERE) -> Principal:
        """Where nobody need show a token, and nobody does, the store is not asked: it may be down."""
        if scope is Scope.OPEN:
            return self.anybody
        shown = headers.get(b"authorization")
        if shown is None and scope is Scope.PROVEN:
            return self.anybody
        if shown is not None:
            return await self._of_token(shown)
        if self._trust == "nobody" or _is_of_another_page(headers) or not await self._is_open():
            return self.anybody
        sign = sign_of_a_proxy(headers, via) if self._trust == "loopback" else ""
        if sign:
            raise RequestRefused(problems.through_a_proxy(sign))
        return self._operator

    def is_ours(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether what is shown can be a token of ours at all."""
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        return kind.lower() == b"bearer" and token.strip().startswith(PREFIX.encode())

    def knows(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the token was looked up lately, so that nobody need be asked."""
        token = headers.get(b"authorization", b"").partition(b" ")[2].strip()
        known = self._known.get(sha256(token).digest())
        return not token or (known is not None and self._clock.monotonic() < known[1])

    async def _of_token(self, shown: bytes) -> Principal:
        """Looked for by its hash: how long that takes says nothing about any token."""
        kind, _, token = shown.partition(b" ")
        if kind.lower() != b"bearer" or not token.strip():
            raise RequestRefused(problems.unauthorized("The Authorization header is not a bearer token."))
        digest, now = sha256(token.strip()), self._clock.monotonic()
        known = self._known.get(digest.digest())
        if known is None or now >= known[1]:
            found = await await_(find_token(self._store, digest.hexdigest()))
            known = (None if found is None else principal_of(found), now + FRESH)
            self._remember(digest.digest(), known)
        if known[0] is None:
            raise RequestRefused(problems.unauthorized("This token is not known, was revoked, or its time is over."))
        return known[0]

    def _remember(self, digest: bytes, known: tuple[Principal | None, float]) -> None:
        self._known[digest] = known
        self._known.move_to_end(digest)
        if len(self._known) > MOST:
            self._known.popitem(last=False)

    async def _is_open(self) -> bool:
        """Asked again now and then while there is no token; a token that was made is never unmade."""
        now = self._clock.monotonic()
        if now < self._open_until:
            return True
        if await await_(any_token(self._store)):
            self._trust = "nobody"
            return False
        self._open_until = now + FRESH
        return True


def sign_of_a_proxy(headers: Mapping[bytes, bytes], via: Via = HERE) -> str:
    """What tells that a request did not come straight from this machine, in words; "": nothing does.

    A foreign Host is one: a proxy that passes it on, or a name that was made to lead here from a page in the operator's
    own browser. HTTP/1.0 is what nginx speaks to whatever is behind it, unless told otherwise, and it adds no header.
    """
    if not is_loopback(_host(headers.get(b"host", b""))):
        return "its Host header does not name this machine"
    for name in headers:
        if name in FORWARDED or name.startswith(FORWARDED_BY):
            return f"it has the header {name.decode('latin-1')}"
    if via.version in OLD:
        return f"it is HTTP/{via.version}, as nginx speaks by default"
    if _is_another_machine(via.client):
        return "it comes from another address"
    return ""


@lru_cache(1_024)
def _is_another_machine(client: str) -> bool:
    """What is no address is none of another machine's: a socket in the file system, a test's client."""
    try:
        known = ip_address(client)
    except ValueError:
        return False
    return not (getattr(known, "ipv4_mapped", None) or known).is_loopback


def _is_of_another_page(headers: Mapping[bytes, bytes]) -> bool:
    """Of another site in the operator's own browser, or of another program on this machine: its port counts, too."""
    origin = headers.get(b"origin")
    return origin is not None and origin.rpartition(b"//")[2] != headers.get(b"host", b"")


def _host(text: bytes) -> str:
    """Without the port, and without the brackets of an IPv6 address."""
    name = text.decode("latin-1")
    return name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]


WITH_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d+)?|(\d+\.\d+\.\d+\.\d+):\d+", re.ASCII)


def address_in(text: str) -> str | None:
    """The address, without a port: some proxies add it, and a caller has many. None: it is no address."""
    text = text.strip()
    found = WITH_PORT.fullmatch(text)
    try:
        return str(ip_address((found[1] or found[2]) if found else text))
    except ValueError:
        return None


def rate_limit_subject(address: str) -> str:
    """One customer has a whole /64 of IPv6: with a limit for each address of it, there would be none."""
    if ":" not in address:
        return address
    try:
        known = IPv6Address(address)
    except ValueError:
        return address
    return str(known.ipv4_mapped or IPv6Network((known, 64), strict=False))


POLICY: dict[tuple[str, str], Scope] = {
    ("GET", "/healthz"): Scope.OPEN,
    ("GET", "/readyz"): Scope.OPEN,
    ("GET", "/openapi.json"): Scope.OPEN,
    ("GET", "/metrics"): Scope.OPERATOR,
    ("POST", "/hooks/{name}"): Scope.PROVEN,
    ("OPTIONS", "/hooks/{name}"): Scope.PROVEN,
    ("PUT", "/v1/claims/{operation}/{key}"): Scope.INGEST,
    ("GET", "/v1/claims/{operation}/{key}"): Scope.READ,
    ("POST", "/v1/claims/{operation}/{key}/complete"): Scope.INGEST,
    ("POST", "/v1/claims/{operation}/{key}/fail"): Scope.INGEST,
    ("POST", "/v1/claims/{operation}/{key}/renew"): Scope.INGEST,
    ("POST", "/v1/runs/{name}"): Scope.RUN,
    ("GET", "/v1/runs"): Scope.READ,
    ("GET", "/v1/runs/{name}"): Scope.READ,
    ("POST", "/v1/runs/{name}/cancel"): Scope.RUN,
    ("POST", "/v1/runs/{name}/retry"): Scope.RUN,
    ("POST", "/v1/callbacks/{token}"): Scope.PROVEN,
    ("GET", "/v1/approvals"): Scope.READ,
    ("GET", "/v1/approvals/{id}"): Scope.APPROVE,
    ("POST", "/v1/approvals/{id}"): Scope.APPROVE,
    ("GET", "/v1/approvals/link/{token}"): Scope.PROVEN,
    ("POST", "/v1/approvals/link/{token}"): Scope.PROVEN,
    ("POST", "/v1/reviews/{name}"): Scope.APPROVE,
}


def allows(scope: Scope, principal: Principal, own_tenant: str) -> bool:
    """Whether this caller may. A token that is shown where none is needed must still be good for `ingest` there."""
    match scope:
        case Scope.OPEN:
            return True
        case Scope.PROVEN:
            return not principal.name or principal.may(Scope.INGEST)
        case Scope.OPERATOR:
            return principal.tenant == own_tenant and principal.may(Scope.READ)
        case _:
            return principal.may(scope)


def require_policy(routes: Iterable[ApiRoute]) -> None:
    missing = [f"{route.method} {route.path}" for route in routes if (route.method, route.path) not in POLICY]
    if missing:
        raise Misuse(f"No rule says who may call {', '.join(missing)}; add it to twiceproof.server.auth.POLICY.")
