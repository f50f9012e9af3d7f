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

from ..claims.acts import ACT_KIND, ActNote, act_write
from ..claims.claim import SELF, body_of, validate_name
from ..claims.states import EXPIRE
from ..errors import Misuse
from ..flows.runtime import note_tenant
from ..operations import Operation
from ..records import Address, Insert, Record, Remove, Replace, Written, record_kind
from ..stores.base import Store, scan_all

__all__ = [
    "GRANTS",
    "LOGIN_LASTS",
    "PREFIX",
    "ApiToken",
    "Principal",
    "Scope",
    "StoreSigner",
    "anonymous",
    "any_token",
    "create_login",
    "create_token",
    "find_token",
    "hash_of",
    "list_tokens",
    "operator",
    "principal_of",
    "revoke_token",
    "signer",
    "take_login",
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
    RELEASE = "release"  # of no route: `twiceproof flows promote --token`
    ADMIN = "admin"  # all of them


GRANTS = (Scope.INGEST, Scope.RUN, Scope.APPROVE, Scope.READ, Scope.RELEASE, Scope.ADMIN)


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
LOGINS, LOGIN_KIND = "~logins", record_kind("login", expires=True)
LOGIN_LASTS = 60.0  # seconds
TOKENS = "tokens"  # what acts about tokens are about
LIVE, REVOKED, EXPIRED = "live", "revoked", "expired"
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

    def state_at(self, now: float) -> str:
        """Return "live", "revoked", or "expired"."""
        return self.state if self.state != LIVE or self.is_valid(now) else EXPIRED


class LoginLink(Struct, frozen=True):
    """What is stored of a link for one login, under the hash of its secret. `token` is the hash of the token."""

    token: str


def hash_of(token: str) -> str:
    """Hash a token. It has 256 random bits, so a slow hash is not needed."""
    return sha256(token.encode()).hexdigest()


def create_token(
    store: Store, name: str, tenant: str, scopes: Collection[Scope], lasts: float | None = None, *, by: str = ""
) -> Operation[tuple[str, ApiToken]]:
    """Create a token. Return it, to be shown once, and what is stored. Workers then know the tenant.

    `by`: who asked for it, for the record.
    """
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
    at = _address(hash_of(secret))
    yield from store.write(Insert(at, body_of(token), LIVE), *_act(store, at, token, "create", by))
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


def revoke_token(store: Store, name: str, *, by: str = "") -> Operation[ApiToken]:
    """Revoke a token by its id, or by its name if only one live token has it. One that is revoked stays as it is.

    `by`: who asked, for the record.
    """
    record = yield from _record_of(store, name)
    if record.state == REVOKED:  # its act is on record, and cannot be written again
        return _token_of(record)
    act = _act(store, record.at, _token_of(record), "revoke", by)
    written = yield from store.write(Replace(record.at, None, REVOKED, version=record.version), *act)
    if not isinstance(written, Written):
        return (yield from revoke_token(store, name, by=by))  # changed concurrently
    return msgspec.structs.replace(_token_of(record), state=REVOKED)


def _record_of(store: Store, name: str) -> Operation[Record]:
    records = yield from _records(store)
    wanted = [one for one in records if name == _token_of(one).id]
    wanted = wanted or [one for one in records if (name, LIVE) == (_token_of(one).name, one.state)]
    if len(wanted) != 1:
        what = "Several live tokens have the name" if wanted else "There is no live token"
        raise Misuse(f"{what} {name[:80]!r}; give an id: twiceproof tokens list")
    return wanted[0]


def create_login(store: Store, name: str) -> Operation[str]:
    """Return a secret that begins one session as this live token, for a minute. The token itself is not known."""
    record = yield from _record_of(store, name)
    if record.state != LIVE:
        raise Misuse(f"The token {name[:80]!r} was revoked; name a live one: twiceproof tokens list")
    secret = secrets.token_urlsafe(ENTROPY)
    body = body_of(LoginLink(record.at.key))
    yield from store.write(Insert(_login_address(secret), body, queue=EXPIRE, due_in=LOGIN_LASTS))
    return secret


def take_login(store: Store, secret: str) -> Operation[str]:
    """Use up such a secret, and return the hash of its token; "" if it is unknown, over, or was used."""
    found = yield from store.read(_login_address(secret))
    record = found.record
    if record is None or (record.due_at is not None and record.due_at <= found.now):
        return ""
    if not isinstance((yield from store.write(Remove(record.at, version=record.version))), Written):
        return ""  # used meanwhile
    return msgspec.json.decode(record.body, type=LoginLink).token


def _login_address(secret: str) -> Address:
    return Address(f"{LOGINS}/{sha256(secret.encode(errors='replace')).hexdigest()}", LOGIN_KIND, SELF)


def _act(store: Store, at: Address, token: ApiToken, verb: str, by: str) -> tuple[Insert, ...]:
    """A token is made and revoked once: its id and the verb name the act."""
    if not by or store.batch_limit == 1:
        return ()
    act = ActNote(verb, by, TOKENS, token.name, token.tenant, " ".join(token.scopes))
    return (act_write(Address(at.space, ACT_KIND, f"{token.id}-{verb}"), act),)


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
