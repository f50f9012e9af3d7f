"""Who calls: from the Authorization header to a principal. A token is looked up at most every few seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from typing import Literal

from ..clock import Clock
from ..drive import await_
from ..stores.base import Store
from . import problems
from .call import Refused
from .principal import Principal, Scope, anybody, operator
from .tokens import PREFIX, any_token, find_token, principal_of

__all__ = ["FRESH", "Access", "Trust", "is_loopback"]

Trust = Literal["nobody", "loopback", "everybody"]

FRESH = 3.0  # seconds for which what was found is believed: a revoked token is good for no longer
# What proxies add. Whoever calls through one is not on this machine, though the proxy is.
FORWARDED = (
    b"x-forwarded-for", b"forwarded", b"x-forwarded-host", b"x-real-ip", b"via", b"x-forwarded-proto",
    b"x-forwarded-server", b"x-forwarded-port", b"x-client-ip", b"x-original-host", b"cf-connecting-ip", b"cf-ray",
    b"true-client-ip", b"fly-client-ip", b"x-envoy-external-address", b"x-arr-ssl",
)  # fmt: skip
MOST = 4_096  # tokens remembered, wrong ones among them


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

    async def principal(self, headers: Mapping[bytes, bytes], scope: Scope) -> Principal:
        """Where nobody need show a token, and nobody does, the store is not asked: it may be down."""
        if scope is Scope.OPEN:
            return self.anybody
        shown = headers.get(b"authorization")
        if shown is None and scope is Scope.PROVEN:
            return self.anybody
        if shown is not None:
            return await self._of_token(shown)
        if self._trust != "nobody" and self._is_from_here(headers) and await self._is_open():
            return self._operator
        return self.anybody

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
            raise Refused(problems.unauthorized("The Authorization header is not a bearer token."))
        digest, now = sha256(token.strip()), self._clock.monotonic()
        known = self._known.get(digest.digest())
        if known is None or now >= known[1]:
            found = await await_(find_token(self._store, digest.hexdigest()))
            known = (None if found is None else principal_of(found), now + FRESH)
            self._remember(digest.digest(), known)
        if known[0] is None:
            raise Refused(problems.unauthorized("This token is not known, was revoked, or its time is over."))
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

    def _is_from_here(self, headers: Mapping[bytes, bytes]) -> bool:
        """Not a page of another site in the operator's own browser, nor one whose name was made to lead here.

        Nor by the public name: whoever uses that may be anybody whom a proxy lets through.
        """
        shown = headers.get(b"host", b"")
        if self._trust == "loopback" and not (is_loopback(_host(shown)) and headers.keys().isdisjoint(FORWARDED)):
            return False
        origin = headers.get(b"origin")  # with its port: another program of this machine has pages, too
        return origin is None or origin.rpartition(b"//")[2] == shown


def _host(text: bytes) -> str:
    """Without the port, and without the brackets of an IPv6 address."""
    name = text.decode("latin-1")
    return name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
