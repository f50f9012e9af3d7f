"""API tokens and principals."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from enum import StrEnum
from hashlib import sha256

import msgspec
from msgspec import Struct

from ..claims.claim import body_of, validate_name
from ..errors import Misuse
from ..flows.workers.tenants import note_tenant
from ..operations import Operation
from ..records import Address, Insert, Record, Replace, Written, record_kind
from ..stores.base import Store, scan_all

__all__ = [
    "GRANTS",
    "PREFIX",
    "ApiToken",
    "Principal",
    "Scope",
    "any_token",
    "anybody",
    "create_token",
    "find_token",
    "hash_of",
    "list_tokens",
    "operator",
    "principal_of",
    "revoke_token",
]


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


SPACE, KIND = "~tokens", record_kind("token")  # no tenant's own: a name has no tilde
LIVE, REVOKED = "live", "revoked"
PREFIX = "tp_"
ENTROPY = 32  # bytes


class ApiToken(Struct, frozen=True, omit_defaults=True):
    """What is kept of a token. `id` is the beginning of its hash: enough for people, of no use to a thief."""

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    created_at: float = 0.0
    expires_at: float | None = None
    state: str = LIVE

    def is_good(self, now: float) -> bool:
        return self.state == LIVE and (self.expires_at is None or now < self.expires_at)


def hash_of(token: str) -> str:
    """Of 256 random bits: nothing is gained by a slow hash."""
    return sha256(token.encode()).hexdigest()


def create_token(
    store: Store, name: str, tenant: str, scopes: Collection[Scope], lasts: float | None = None
) -> Operation[tuple[str, ApiToken]]:
    """The token, to be shown once, and what is kept. From now on the tenant's runs are looked after."""
    if not scopes or not set(scopes) <= set(GRANTS):
        raise Misuse(f"A token needs scopes; give some of {', '.join(GRANTS)}.")
    secret = PREFIX + secrets.token_urlsafe(ENTROPY)
    now = (yield from store.read(_address(hash_of(secret)))).now
    ordered = tuple(scope for scope in GRANTS if scope in set(scopes))
    token = ApiToken(
        f"tok_{hash_of(secret)[:16]}",
        validate_name("token", name),
        validate_name("tenant", tenant),
        ordered,
        now,
        None if lasts is None else now + lasts,
    )
    yield from note_tenant(store, tenant)
    yield from store.write(Insert(_address(hash_of(secret)), body_of(token), LIVE))
    return secret, token


def find_token(store: Store, digest: str) -> Operation[ApiToken | None]:
    """By its hash. None: there is none, it was revoked, or its time is over."""
    found = yield from store.read(_address(digest))
    token = _token_of(found.record) if found.record is not None else None
    return token if token is not None and token.is_good(found.now) else None


def any_token(store: Store) -> Operation[bool]:
    """Whether one was ever made. Revoking the last one must not open the door to everybody."""
    page = yield from store.scan(KIND, space=SPACE, limit=1)
    return bool(page.records)


def list_tokens(store: Store) -> Operation[list[ApiToken]]:
    """All of them, also revoked ones, the oldest first."""
    return sorted((_token_of(record) for record in (yield from _records(store))), key=lambda token: token.created_at)


def revoke_token(store: Store, name: str) -> Operation[ApiToken]:
    """By its id, or by its name where only one live token has it."""
    records = yield from _records(store)
    wanted = [one for one in records if name == _token_of(one).id]
    wanted = wanted or [one for one in records if (name, LIVE) == (_token_of(one).name, one.state)]
    if len(wanted) != 1:
        what = "Several live tokens have the name" if wanted else "There is no live token"
        raise Misuse(f"{what} {name[:80]!r}; give an id: twiceproof tokens list")
    record = wanted[0]
    written = yield from store.write(Replace(record.at, None, REVOKED, version=record.version))
    if not isinstance(written, Written):
        return (yield from revoke_token(store, name))  # somebody else was at it
    return msgspec.structs.replace(_token_of(record), state=REVOKED)


def principal_of(token: ApiToken) -> Principal:
    return Principal(token.name, frozenset(token.scopes), token.tenant)


def _records(store: Store) -> Operation[list[Record]]:
    return scan_all(store, KIND, space=SPACE)


def _token_of(record: Record) -> ApiToken:
    return msgspec.structs.replace(msgspec.json.decode(record.body, type=ApiToken), state=record.state)


def _address(digest: str) -> Address:
    return Address(SPACE, KIND, digest)
