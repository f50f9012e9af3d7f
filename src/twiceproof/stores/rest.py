"""JSON over HTTP for stores that are web services: sign-in, throttling, and what an unanswered request means.

A request is sent once. One that the service throttled was not carried out, and is sent again when the service allows
it, if that is within the caller's patience; until then nothing else is sent: throttled requests lengthen the wait.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from ..clock import Clock, jitter
from ..errors import Misuse, StoreError, StoreUnavailable
from ..secret import env
from .base import Disconnected
from .rows.table import UNANSWERED, closed

__all__ = ["RestAnswer", "RestClient", "ServiceUrl", "SignIn", "quoted_text"]

LOGIN = "https://login.microsoftonline.com"
SECRET_NAME = "TWICEPROOF_CLIENT_SECRET"  # noqa: S105 - the name of a variable
LOOPBACK = ("127.0.0.1", "localhost", "::1")
TIMEOUT = 30.0  # seconds that one request may take
PATIENCE = 10.0  # seconds that a throttled request is waited for
EARLY = 300.0  # seconds before its end at which a token is renewed
WITHOUT_TIME = 2.0  # seconds to wait after a 429 that does not say how long
LEAST_PAUSE = 0.5  # seconds to wait after one that says 0
MOST_CONNECTIONS = 32
LONGEST = 300  # characters of an answer in a message
UNAUTHORIZED, FORBIDDEN, TOO_MANY, UNAVAILABLE = 401, 403, 429, 503
NEVER_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "LocalProtocolError")


class ServiceUrl(Struct, frozen=True):
    """What the URL of such a store says. It holds a secret if the URL does: never print it."""

    base: str
    host: str
    path: tuple[str, ...]
    client: str
    secret: str
    options: dict[str, str]

    @classmethod
    def of(cls, parts: SplitResult, *, legal: tuple[str, ...], example: str) -> ServiceUrl:
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(set(options) - set(legal))
        if unknown:
            raise Misuse(f"In the store's URL, {unknown[0]}= is not known; this store has: {', '.join(legal)}.")
        path = tuple(unquote(part) for part in parts.path.split("/") if part)
        if not parts.hostname or not path:
            raise Misuse(f"The store's URL names no service or no table; write it like {example}")
        local = parts.hostname in LOOPBACK
        if not local and not (parts.username and options.get("tenant")):
            raise Misuse(f"The store's URL names no application to sign in as; write it like {example}")
        host = parts.netloc.rpartition("@")[2]
        secret = unquote(parts.password or "")
        return cls(f"{'http' if local else 'https'}://{host}", host, path, parts.username or "", secret, options)

    def sign_in(self, scope: str) -> SignIn | None:
        """Return how to sign in; None for a service on this machine without an application's name."""
        if not self.client:
            return None
        login, tenant = self.options.get("login", LOGIN), self.options.get("tenant", "")
        return SignIn(login.rstrip("/"), tenant, self.client, self.secret, scope)


class SignIn(Struct, frozen=True):
    """Client credentials of Microsoft Entra ID. The secret is the URL's password, or TWICEPROOF_CLIENT_SECRET."""

    login: str
    tenant: str
    client: str
    secret: str
    scope: str

    def __repr__(self) -> str:
        return f"SignIn({self.login}, {self.client})"

    @property
    def url(self) -> str:
        return f"{self.login}/{quote(self.tenant, safe='')}/oauth2/v2.0/token"

    def form(self) -> bytes:
        secret = self.secret or env(SECRET_NAME).values()[0]
        given = {"grant_type": "client_credentials", "client_id": self.client, "scope": self.scope}
        return urlencode({**given, "client_secret": secret}).encode()


class RestAnswer(Struct, frozen=True):
    """An answer with its body read as JSON. Headers are by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def error(self) -> Mapping[str, Any]:
        found = self.body.get("error") if isinstance(self.body, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def code(self) -> str:
        return str(self.error.get("code", "")).lower()

    @property
    def told(self) -> str:
        """The status and the beginning of the error, for messages."""
        return f"{self.status} {' '.join(str(self.error.get('message') or '').split())}"[:LONGEST].strip()

    @property
    def now(self) -> float:
        """The service's clock, in whole seconds, rounded down."""
        return parsedate_to_datetime(self.headers["date"]).timestamp()

    @property
    def retry_after(self) -> float | None:
        text = self.headers.get("retry-after", "")
        return float(text) if re.fullmatch(r"\d{1,6}(\.\d+)?", text) else None


class RestClient:
    """Requests to one service, over pooled connections. Safe to use from threads; `abandon` it in a forked child."""

    def __init__(self, base: str, sign_in: SignIn | None, *, clock: Clock, patience: float = PATIENCE) -> None:
        self.base = base
        self._sign_in = sign_in
        self._clock = clock
        self._patience = patience
        self._left: list[Any] = []  # the parent's connections, which closing here would end there, too
        self._pool: Any = None
        self.abandon()

    def abandon(self) -> None:
        self._left.append(self._pool)
        self._mutex, self._pool = threading.Lock(), None
        self._token, self._token_until = "", 0.0
        self._closed = False
        self._quiet_until = 0.0  # when the service accepts requests again, by the monotonic clock

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    # -- requests --------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> RestAnswer:
        """Return an answer that is about the request itself: neither throttling nor an unknown outcome.

        Raises Disconnected if it was not sent or its outcome is unknown, StoreUnavailable if the service wants longer
        to be left alone than the caller waits.
        """
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        url = path if path.startswith("http") else f"{self.base}{path}{query}"
        body = b"" if json is None else msgspec.json.encode(json)
        kind = {"Content-Type": "application/json"} if body else {}
        until, renewed = self._clock.monotonic() + self._patience, False
        while True:
            self._rest(until)
            given = {"Accept": "application/json", **kind, **(headers or {}), **self._authorization()}
            answer = self._send(method, url, given, body)
            if answer.status == UNAUTHORIZED and not renewed:
                renewed, self._token = True, ""
            elif _is_throttled(answer):
                self._be_quiet(answer.retry_after)
            else:
                return _conclusive(answer, f"{method} {urlsplit(url).path}")

    def require(self, method: str, path: str, **given: Any) -> RestAnswer:
        """Like `call`, and raise for every status but 2xx."""
        answer = self.call(method, path, **given)
        if not answer.ok:
            raise refusal(answer, f"{method} {path}")
        return answer

    def _be_quiet(self, seconds: float | None) -> None:
        span = WITHOUT_TIME if seconds is None else max(seconds, LEAST_PAUSE)
        self._quiet_until = max(self._quiet_until, self._clock.monotonic() + span)

    def _rest(self, until: float) -> None:
        """Wait until the service accepts requests, and a moment more, or raise if that is too long."""
        left = self._quiet_until - self._clock.monotonic()
        if left <= 0:
            return
        if self._quiet_until > until:
            raise StoreUnavailable(
                f"The store is throttled by its service for another {left:.0f} s. Nothing was written. Try again then, "
                "and send fewer requests.",
                unsure=False,
                cause="throttled",
                retry_after=left,
            )
        self._clock.sleep(left + jitter(min(1.0, left / 4)))

    # -- sign-in ---------------------------------------------------------------------------------

    def _authorization(self) -> dict[str, str]:
        if self._sign_in is None:
            return {}
        with self._mutex:
            token, until = self._token, self._token_until
        if not token or self._clock.monotonic() >= until:
            token = self._signed_in(self._sign_in)
        return {"Authorization": f"Bearer {token}"}

    def _signed_in(self, sign_in: SignIn) -> str:
        form = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        try:
            answer = self._send("POST", sign_in.url, form, sign_in.form())
        except Disconnected as error:
            raise Disconnected(error, sent=False) from None  # nothing but the token was asked for
        body = answer.body if isinstance(answer.body, dict) else {}
        token, span = body.get("access_token"), body.get("expires_in")
        if not answer.ok or not isinstance(token, str) or not isinstance(span, int | float):
            if answer.status >= 500 or answer.status == TOO_MANY:
                raise Disconnected(OSError(f"signing in was answered with {answer.status}"), sent=False)
            raise StoreError(
                f"Signing in as {sign_in.client} was refused ({answer.status} {body.get('error', '')}); check tenant= "
                f"and the application's secret ({SECRET_NAME})."
            )
        with self._mutex:
            self._token, self._token_until = token, self._clock.monotonic() + max(span - EARLY, span / 2)
        return token

    # -- transport -------------------------------------------------------------------------------

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> RestAnswer:
        fields = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
        fields += [(b"Host", urlsplit(url).netloc.encode("ascii")), (b"Content-Length", str(len(body)).encode())]
        limits = dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT)
        pool = self._open()
        try:
            answer = pool.request(method, url, headers=fields, content=body, extensions={"timeout": limits})
        except Exception as error:
            raise Disconnected(error, sent=type(error).__name__ not in NEVER_SENT) from error
        found = {name.decode("ascii").lower(): value.decode("latin-1") for name, value in answer.headers}
        return RestAnswer(answer.status, found, _json_of(answer.content))

    def _open(self) -> Any:
        import httpcore2

        with self._mutex:
            if self._closed:
                raise closed()
            if self._pool is None:
                self._pool = httpcore2.ConnectionPool(max_connections=MOST_CONNECTIONS, keepalive_expiry=5.0, retries=0)
            return self._pool


def _json_of(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data) if data else None
    except msgspec.DecodeError:
        return None


def _is_throttled(answer: RestAnswer) -> bool:
    """Whether the service says that it did not begin: 429, or 503 with a time to come back."""
    return answer.status == TOO_MANY or (answer.status == UNAVAILABLE and answer.retry_after is not None)


def _conclusive(answer: RestAnswer, what: str) -> RestAnswer:
    """Return an answer that tells what happened. A 5xx does not, nor does one for a request given up on its way."""
    if answer.status >= 500 or answer.status in UNANSWERED:
        raise Disconnected(OSError(f"{what} was answered with {answer.told}"), sent=True)
    if "date" not in answer.headers:
        raise Disconnected(
            OSError(f"{what} was answered without a Date, by something else than the service"), sent=True
        )
    return answer


def refusal(answer: RestAnswer, what: str) -> StoreError:
    """The error for an answer that refuses a request as it is."""
    if answer.status in (UNAUTHORIZED, FORBIDDEN):
        return StoreError(
            f"{what} is not allowed ({answer.told}); give the application the right to the store's table."
        )
    return StoreError(f"{what} is refused ({answer.told}); run: twiceproof doctor")


def quoted_text(text: str) -> str:
    """A text as OData writes it in a filter or in the key of an address."""
    return "'" + text.replace("'", "''") + "'"
