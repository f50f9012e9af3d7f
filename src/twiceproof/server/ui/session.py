"""Logins: a token becomes a session in the store, and the browser gets a cookie that names it.

The cookie is a secret of its own: it opens pages only, ends by itself, and ends with the token it was made from. Routes
under /v1 never look at it, so that a page of another site has nothing to send there.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

import msgspec
from msgspec import Struct

from ...claims.claim import body_of
from ...claims.states import EXPIRE
from ...clock import Clock
from ...errors import StoreError
from ...operations import Operation, await_
from ...records import SELF, Address, Insert, Remove, Replace, record_kind
from ...stores.base import Store
from ..auth import FRESH, Access, is_loopback
from ..tokens import Principal, take_login

__all__ = ["IDLE", "LASTS", "PLAIN", "SECURE", "Sessions", "cookie_header", "session_name"]

KIND = record_kind("session", expires=True)
SPACE = "~sessions"  # cannot clash with a tenant: their names have no tilde
SECURE, PLAIN = "__Host-twiceproof", "twiceproof"
LASTS = 12 * 3_600.0  # seconds from the login
IDLE = 3_600.0  # seconds without a request
NOTED_EVERY = 300.0  # seconds between two records of a session's use, so that not every request writes
MOST = 4_096  # sessions remembered, unknown ones among them
ENTROPY = 32  # bytes


class StoredSession(Struct, frozen=True, omit_defaults=True):
    """What is stored of a session, under the hash of its cookie. `token` is the hash of the token it was made from."""

    token: str
    began_at: float
    used_at: float

    def is_over(self, now: float) -> bool:
        return now >= self.began_at + LASTS or now >= self.used_at + IDLE


def session_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the hash of the session's cookie, "" without one. Forms are bound to it."""
    cookies = SimpleCookie()
    with suppress(CookieError):
        cookies.load(headers.get(b"cookie", b"").decode("latin-1"))
    value = next((cookies[name].value for name in (SECURE, PLAIN) if name in cookies), "")
    return sha256(value.encode(errors="replace")).hexdigest() if value else ""


def cookie_header(value: str, *, scheme: str, host: str, seconds: float = LASTS) -> tuple[str, str]:
    """Return the header that sets the cookie. Over plain HTTP, from another machine, a browser drops a secure
    one."""
    is_secure = scheme == "https" or is_loopback(host.strip("[]"))
    name, secure = (SECURE, "; Secure") if is_secure else (PLAIN, "")
    return "set-cookie", f"{name}={value}; Path=/; Max-Age={seconds:.0f}; HttpOnly; SameSite=Lax{secure}"


class Sessions:
    """Begins, finds and ends sessions. A look-up is remembered as long as that of a token."""

    def __init__(self, store: Store, access: Access, clock: Clock) -> None:
        self._store = store
        self._access = access
        self._clock = clock
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()  # the token's hash, and until when

    async def begin(self, token: str) -> str | None:
        """Return the cookie of a new session; None if the token is not valid."""
        return await self._begin_as(sha256(token.encode(errors="replace")).hexdigest())

    async def begin_by_link(self, secret: str) -> str | None:
        """Return the cookie of a new session; None if the link is not valid, or was used."""
        token = await await_(take_login(self._store, secret))
        return await self._begin_as(token) if token else None

    async def _begin_as(self, token: str) -> str | None:
        if await self._access.of_digest(bytes.fromhex(token)) is None:
            return None
        cookie = secrets.token_urlsafe(ENTROPY)
        await await_(self._begin(_named(cookie), token))
        return cookie

    def _begin(self, name: str, token: str) -> Operation[None]:
        now = (yield from self._store.read(_address(name))).now
        made = StoredSession(token, now, now)
        yield from self._store.write(Insert(_address(name), body_of(made), queue=EXPIRE, due_in=LASTS))

    async def principal(self, name: str, *, is_used: bool = True) -> Principal | None:
        """Return whose session this is; None if it is over, or if its token is not valid any more. `is_used`: it counts
        as a use, after which the session is idle for as long again.
        """
        if not name:
            return None
        known = self._known.get(name)
        if known is None or self._clock.monotonic() >= known[1]:
            token = await await_(self._look_up(name, is_used=is_used))
            known = (token, self._clock.monotonic() + FRESH)
            self._remember(name, known)
        return await self._access.of_digest(bytes.fromhex(known[0])) if known[0] else None

    def _look_up(self, name: str, *, is_used: bool) -> Operation[str]:
        found = yield from self._store.read(_address(name))
        if found.record is None:
            return ""
        session = msgspec.json.decode(found.record.body, type=StoredSession)
        if session.is_over(found.now):
            return ""
        if is_used and found.now - session.used_at >= NOTED_EVERY:
            body = body_of(msgspec.structs.replace(session, used_at=found.now))
            left = session.began_at + LASTS - found.now
            with suppress(StoreError):  # a store that cannot be written can still be read
                yield from self._store.write(
                    Replace(found.record.at, body, version=found.record.version, queue=EXPIRE, due_in=left)
                )
        return session.token

    def _remember(self, name: str, known: tuple[str, float]) -> None:
        self._known[name] = known
        self._known.move_to_end(name)
        if len(self._known) > MOST:
            self._known.popitem(last=False)

    async def end(self, name: str) -> None:
        """End a session at once here, and within seconds in other processes."""
        self._known.pop(name, None)
        await await_(self._end(name))

    def _end(self, name: str) -> Operation[None]:
        record = (yield from self._store.read(_address(name))).record
        if record is not None:
            yield from self._store.write(Remove(record.at, version=record.version))


def _named(cookie: str) -> str:
    return sha256(cookie.encode()).hexdigest()


def _address(name: str) -> Address:
    return Address(f"{SPACE}/{name}", KIND, SELF)
