"""Authentication and authorisation: tokens, trust in loopback clients, client addresses, and the access policy."""

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
from .tokens import PREFIX, Principal, Scope, anonymous, any_token, find_token, operator, principal_of

__all__ = [
    "FRESH",
    "POLICY",
    "Access",
    "Peer",
    "Trust",
    "address_in",
    "allows",
    "is_loopback",
    "proxy_evidence",
    "rate_limit_subject",
    "require_policy",
    "required_scope",
]


Trust = Literal["nobody", "loopback", "everybody"]

FRESH = 3.0  # seconds for which a lookup is cached: a revoked token stays valid no longer
# Headers that proxies, tunnels and CDNs add. A client behind one is not on this machine, even if the proxy is.
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


class Peer(NamedTuple):
    """The other end of the connection: its address, and its version of HTTP."""

    client: str = ""  # "": not known, as for a Unix socket
    version: str = "1.1"


LOCAL = Peer()


@lru_cache(1_024)  # called for every request, mostly with the same few addresses
def is_loopback(host: str) -> bool:
    """Whether this is a loopback address or `localhost`. Other names, like `127.0.0.1.example.com`, are not trusted."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Authenticates requests. `trust`: who counts as the operator as long as no token was ever created."""

    def __init__(self, store: Store, tenant: str, clock: Clock, *, trust: Trust) -> None:
        self._store = store
        self._clock = clock
        self._trust = trust
        self.anonymous = anonymous(tenant)
        self._operator = operator(tenant)
        self._known: OrderedDict[bytes, tuple[Principal | None, float]] = OrderedDict()
        self._no_token_until = 0.0

    async def principal(self, headers: Mapping[bytes, bytes], scope: Scope, peer: Peer = LOCAL) -> Principal:
        """Return the caller. Without a token on a route that needs none, the store is not read: it may be down."""
        if scope is Scope.OPEN:
            return self.anonymous
        header = headers.get(b"authorization")
        if header is None and scope is Scope.PROVEN:
            return self.anonymous
        if header is not None:
            return await self._of_token(header)
        if self._trust == "nobody" or _is_cross_origin(headers) or not await self.has_no_token():
            return self.anonymous
        evidence = proxy_evidence(headers, peer) if self._trust == "loopback" else ""
        if evidence:
            raise RequestRefused(problems.through_a_proxy(evidence))
        return self._operator

    def is_own_token(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the Authorization header has the form of this server's tokens."""
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        return kind.lower() == b"bearer" and token.strip().startswith(PREFIX.encode())

    def is_cached(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the token's lookup is cached, or there is no token."""
        token = headers.get(b"authorization", b"").partition(b" ")[2].strip()
        if not token:
            return True
        known = self._known.get(sha256(token).digest())
        return known is not None and self._clock.monotonic() < known[1]

    async def _of_token(self, header: bytes) -> Principal:
        kind, _, token = header.partition(b" ")
        if kind.lower() != b"bearer" or not token.strip():
            raise RequestRefused(problems.unauthorized("The Authorization header is not a bearer token."))
        found = await self.of_digest(sha256(token.strip()).digest())
        if found is None:
            raise RequestRefused(problems.unauthorized("This token is unknown, revoked or expired."))
        return found

    async def of_digest(self, digest: bytes) -> Principal | None:
        """Look a token up by its hash, so that the timing reveals nothing about valid tokens."""
        now = self._clock.monotonic()
        known = self._known.get(digest)
        if known is None or now >= known[1]:
            found = await await_(find_token(self._store, digest.hex()))
            known = (None if found is None else principal_of(found), now + FRESH)
            self._remember(digest, known)
        return known[0]

    def _remember(self, digest: bytes, known: tuple[Principal | None, float]) -> None:
        self._known[digest] = known
        self._known.move_to_end(digest)
        if len(self._known) > MOST:
            self._known.popitem(last=False)

    async def has_no_token(self) -> bool:
        """Whether no token was ever created; checked again regularly. Once one exists, the answer is final."""
        now = self._clock.monotonic()
        if now < self._no_token_until:
            return True
        if await await_(any_token(self._store)):
            self._trust = "nobody"
            return False
        self._no_token_until = now + FRESH
        return True


def proxy_evidence(headers: Mapping[bytes, bytes], peer: Peer = LOCAL) -> str:
    """Return why a request seems to come through a proxy rather than directly from this machine, or "".

    A foreign Host header is evidence: a proxy passed it on, or DNS rebinding in the operator's browser led here. So is
    HTTP/1.0, which nginx uses for its upstreams by default, without adding a header.
    """
    if not is_loopback(_host(headers.get(b"host", b""))):
        return "its Host header does not name this machine"
    for name in headers:
        if name in FORWARDED or name.startswith(FORWARDED_BY):
            return f"it has the header {name.decode('latin-1')}"
    if peer.version in OLD:
        return f"it is HTTP/{peer.version}, as nginx speaks by default"
    if _is_another_machine(peer.client):
        return "it comes from another address"
    return ""


@lru_cache(1_024)
def _is_another_machine(client: str) -> bool:
    """Whether this is an address of another machine. Unix sockets and test clients have no address."""
    try:
        known = ip_address(client)
    except ValueError:
        return False
    return not (getattr(known, "ipv4_mapped", None) or known).is_loopback


def _is_cross_origin(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the request comes from a page of another origin, which includes another port on this machine."""
    origin = headers.get(b"origin")
    return origin is not None and origin.rpartition(b"//")[2] != headers.get(b"host", b"")


def _host(text: bytes) -> str:
    """Return the host without the port and without the brackets of an IPv6 address."""
    name = text.decode("latin-1")
    return name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]


WITH_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d+)?|(\d+\.\d+\.\d+\.\d+):\d+", re.ASCII)


def address_in(text: str) -> str | None:
    """Return the address without its port, which some proxies add; None if it is not an address."""
    text = text.strip()
    found = WITH_PORT.fullmatch(text)
    try:
        return str(ip_address((found[1] or found[2]) if found else text))
    except ValueError:
        return None


def rate_limit_subject(address: str) -> str:
    """Return what a rate limit applies to: an IPv4 address, or the /64 network that one IPv6 customer controls."""
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
    ("GET", "/v1/reconciliations"): Scope.READ,
    ("POST", "/v1/reconciliations/{name}"): Scope.RUN,
    ("GET", "/v1/findings"): Scope.READ,
    ("GET", "/v1/findings/{id}"): Scope.READ,
    ("POST", "/v1/findings/{id}"): Scope.APPROVE,
    ("GET", "/v1/messages"): Scope.READ,
    ("GET", "/v1/messages/{key}"): Scope.READ,
    ("POST", "/v1/messages/{key}"): Scope.APPROVE,
    ("GET", "/v1/brokers"): Scope.OPERATOR,
    ("POST", "/v1/brokers/{name}"): Scope.APPROVE,
    ("GET", "/v1/consumers"): Scope.OPERATOR,
    ("GET", "/v1/acts"): Scope.READ,
    ("GET", "/v1/claims"): Scope.READ,
    ("GET", "/v1/duplicates"): Scope.READ,
    ("GET", "/v1/find"): Scope.READ,
    ("GET", "/v1/keys/{operation}/{key}"): Scope.READ,
    ("GET", "/v1/dead-letters"): Scope.READ,
    ("GET", "/v1/dead-letters/{id}"): Scope.READ,
    ("GET", "/v1/dead-letters/{id}/plan"): Scope.READ,
    ("POST", "/v1/dead-letters/{id}/replay"): Scope.RUN,
    ("GET", "/v1/workers"): Scope.OPERATOR,
    ("GET", "/v1/hooks"): Scope.READ,
    ("GET", "/v1/schedules"): Scope.READ,
    ("GET", "/v1/flows"): Scope.READ,
    ("GET", "/v1/flows/{name}"): Scope.READ,
    ("POST", "/v1/flows/{name}/draft"): Scope.RUN,
    ("GET", "/v1/ids"): Scope.READ,
    ("GET", "/v1/runs/{name}/fork"): Scope.RUN,
    ("POST", "/v1/runs/{name}/fork"): Scope.RUN,
    ("GET", "/v1/tokens"): Scope.OPERATOR,
    ("POST", "/v1/tokens"): Scope.ADMIN,
    ("POST", "/v1/tokens/{id}/revoke"): Scope.ADMIN,
    ("GET", "/v1/health"): Scope.OPERATOR,
}


def allows(scope: Scope, principal: Principal, own_tenant: str) -> bool:
    """Whether the caller may use a route. A token sent where none is needed must still have the scope `ingest`."""
    match scope:
        case Scope.OPEN:
            return True
        case Scope.PROVEN:
            return not principal.name or principal.may(Scope.INGEST)
        case Scope.OPERATOR:
            return principal.tenant == own_tenant and principal.may(Scope.READ)
        case _:
            return principal.may(scope)


def required_scope(route: ApiRoute) -> Scope:
    """Return what a route requires. Pages of the dashboard say it themselves."""
    return POLICY[route.method, route.path] if route.scope is None else route.scope


def require_policy(routes: Iterable[ApiRoute]) -> None:
    missing = [
        f"{route.method} {route.path}"
        for route in routes
        if route.scope is None and (route.method, route.path) not in POLICY
    ]
    if missing:
        raise Misuse(
            f"The access policy has no entry for {', '.join(missing)}; add it to twiceproof.server.auth.POLICY."
        )
