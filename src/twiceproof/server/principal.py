"""Who calls: a token's name, what it may do, and whose data it may touch."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

__all__ = ["GRANTS", "Principal", "Scope", "anybody", "operator"]


class Scope(StrEnum):
    """What a route asks for. The first three are no grants: nobody is given them."""

    OPEN = "open"  # nothing: it tells nothing about anybody
    PROVEN = "proven"  # the request proves itself, by a signature or by a secret in its address
    OPERATOR = "operator"  # `read`, by a token of the app's own tenant: it tells about all tenants together
    INGEST = "ingest"
    RUN = "run"
    APPROVE = "approve"
    READ = "read"
    ADMIN = "admin"  # all of them


GRANTS = (Scope.INGEST, Scope.RUN, Scope.APPROVE, Scope.READ, Scope.ADMIN)


class Principal(Struct, frozen=True):
    """`name` is the token's; "" is a caller without one."""

    name: str
    scopes: frozenset[Scope]
    tenant: str

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


def anybody(tenant: str) -> Principal:
    """A caller without a token: may do nothing but what is open or proves itself."""
    return Principal("", frozenset(), tenant)


def operator(tenant: str) -> Principal:
    """Whoever calls over loopback while no token exists."""
    return Principal("", frozenset(GRANTS), tenant)
