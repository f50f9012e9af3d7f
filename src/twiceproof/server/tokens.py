"""API tokens: creating, finding, listing, revoking; scopes and principals; signatures with a key in the store."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from enum import StrEnum
from hashlib import sha256
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from ..claims.claim import SELF, body_of, validate_name
from ..errors import Misuse
from ..flows.runtime import note_tenant
from ..operations import Operation
from ..records import Address, Insert, Record, Replace, Written, record_kind
from ..stores.base import Store, scan_all

__all__ = [
    "GRANTS",
    "PREFIX",
    "ApiToken",
    "Principal",
    "Scope",
    "StoreSigner",
    "anonymous",
    "any_token",
    "create_token",
    "find_token",
    "hash_of",
    "list_tokens",
    "operator",
    "principal_of",
    "revoke_token",
    "signer",
]


class Scope(StrEnum):
    """What a route requires. The first three cannot be granted to tokens."""

    OPEN = "open"  # no token: the response contains no data
    PROVEN = "proven"  # a signature, or a secret in the URL
    OPERATOR = "operator"  # `read`, by a token of the app's own tenant, because the response covers all tenants
    INGEST = "ingest"
    RUN = "run"
    APPROVE = "approve"
    READ = "read"
    ADMIN = "admin"  # all of them


GRANTS = (Scope.INGEST, Scope.RUN, Scope.APPROVE, Scope.READ, Scope.ADMIN)


class Principal(Struct, frozen=True):
    """A caller. `name` is that of its token, or "" without one."""

    name: str
    scopes: frozenset[Scope]
    tenant: str

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


def anonymous(tenant: str) -> Principal:
    """A caller without a token, who may use only open and proven routes."""
    return Principal("", frozenset(), tenant)


def operator(tenant: str) -> Principal:
    """A caller over loopback while no token exists."""
    return Principal("", frozenset(GRANTS), tenant)


SPACE, KIND = "~tokens", record_kind("token")  # not a tenant: names have no tilde
LIVE, REVOKED = "live", "revoked"
PREFIX = "tp_"
ENTROPY = 32  # bytes


class ApiToken(Struct, frozen=True, omit_defaults=True):
    """What is stored of a token. `id` is the beginning of its hash, which cannot be used as the token."""

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    created_at: float = 0.0
    expires_at: float | None = None
    state: str = LIVE

    def is_valid(self, now: float) -> bool:
        return self.state == LIVE and (self.expires_at is None or now < self.expires_at)


def hash_of(token: str) -> str:
    """Hash a token. It has 256 random bits, so a slow hash is not needed."""
    return sha256(token.encode()).hexdigest()


def create_token(
    store: Store, name: str, tenant: str, scopes: Collection[Scope], lasts: float | None = None
) -> Operation[tuple[str, ApiToken]]:
    """Create a token. Return it, to be shown once, and what is stored. Workers then know the tenant."""
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
    """Find a valid token by its hash; None if it is unknown, revoked or expired."""
    found = yield from store.read(_address(digest))
    token = _token_of(found.record) if found.record is not None else None
    return token if token is not None and token.is_valid(found.now) else None


def any_token(store: Store) -> Operation[bool]:
    """Whether a token was ever created. Revoking the last one must not make the server open again."""
    page = yield from store.scan(KIND, space=SPACE, limit=1)
    return bool(page.records)


def list_tokens(store: Store) -> Operation[list[ApiToken]]:
    """Return all tokens, including revoked ones, oldest first."""
    return sorted((_token_of(record) for record in (yield from _records(store))), key=lambda token: token.created_at)


def revoke_token(store: Store, name: str) -> Operation[ApiToken]:
    """Revoke a token by its id, or by its name if only one live token has it."""
    records = yield from _records(store)
    wanted = [one for one in records if name == _token_of(one).id]
    wanted = wanted or [one for one in records if (name, LIVE) == (_token_of(one).name, one.state)]
    if len(wanted) != 1:
        what = "Several live tokens have the name" if wanted else "There is no live token"
        raise Misuse(f"{what} {name[:80]!r}; give an id: twiceproof tokens list")
    record = wanted[0]
    written = yield from store.write(Replace(record.at, None, REVOKED, version=record.version))
    if not isinstance(written, Written):
        return (yield from revoke_token(store, name))  # changed concurrently
    return msgspec.structs.replace(_token_of(record), state=REVOKED)


def principal_of(token: ApiToken) -> Principal:
    return Principal(token.name, frozenset(token.scopes), token.tenant)


def _records(store: Store) -> Operation[list[Record]]:
    return scan_all(store, KIND, space=SPACE)


def _token_of(record: Record) -> ApiToken:
    return msgspec.structs.replace(msgspec.json.decode(record.body, type=ApiToken), state=record.state)


def _address(digest: str) -> Address:
    return Address(SPACE, KIND, digest)


SIGNING_KEY = Address("signing/key", record_kind("signing"), SELF)
KEY_BYTES = 32
SIGNATURE = 32  # characters of a signature that are issued: 128 bits

_KNOWN: WeakKeyDictionary[Store, StoreSigner] = WeakKeyDictionary()  # one read per process, not one per request


class StoreSigner:
    """Signs what the server issues and later recognises, with a key shared by all processes on one store.

    The key is generated once and stored, so that it survives restarts. Anyone who can read the store can sign, so
    nothing that must be protected from them (links, access tokens) relies on a signature alone.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, *parts: str) -> str:
        """Sign the parts with their lengths, so that `ab` + `c` and `a` + `bc` differ."""
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(self._key, text.encode(errors="surrogatepass"), "sha256").hexdigest()[:SIGNATURE]

    def signed(self, mark: str, *parts: str) -> bool:
        """Whether `mark` is the signature of these parts, compared in constant time."""
        return hmac.compare_digest(mark.encode(errors="replace"), self.sign(*parts).encode())


def signer(store: Store) -> Operation[StoreSigner]:
    """Return the store's signer. If several processes generate the key at once, all use the one written first."""
    known = _KNOWN.get(store)
    if known is not None:
        return known
    record = (yield from store.read(SIGNING_KEY)).record
    if record is None:
        generated = secrets.token_hex(KEY_BYTES)
        written = yield from store.write(Insert(SIGNING_KEY, generated))
        body = generated if isinstance(written, Written) else (yield from store.read(SIGNING_KEY)).record.body  # type: ignore[union-attr]
    else:
        body = record.body
    found = _KNOWN[store] = StoreSigner(bytes.fromhex(body))
    return found
