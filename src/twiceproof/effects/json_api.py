"""A JSON API with a bearer token: sends one request, and interprets its answer for the effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from ..claims.client_errors import is_refusal
from ..errors import Misuse, NotDone, OutcomeUnknown
from ..secret import Env, secrets_of
from .base import outgoing_headers, require
from .http_answers import retry_after_of
from .http_client import HttpAnswer, HttpRequest, shared_client
from .http_request import EFFECT_KEY_HEADER, Token

__all__ = ["ApiAnswer", "JsonApi", "Token", "encoded", "json_api", "plain_values"]

Send = Callable[[HttpRequest], HttpAnswer]
TIMEOUT = 30.0
LONGEST = 300  # characters of an answer in a message
TOO_MANY = 429
CONFLICT = 409  # these services say so instead of writing
PASSING = (401, CONFLICT, 423)  # refusals that another attempt may not meet


def json_api(url: str, auth: Token, *, timeout: float = TIMEOUT, send: Send | None = None) -> JsonApi:
    """Return an API. `auth` is `env("NAME")`, or a function that returns a bearer token, such as that of MSAL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise Misuse(f"{url!r} is not the address of an API; write it as https://host, without a query.")
    if not callable(auth):  # a literal token would be in the source code, and would expire within an hour
        raise Misuse('auth= takes env("NAME") or a function that returns a token; a token itself expires.')
    if send is None:
        require("httpcore2", "http", "This effect")
    return JsonApi(url.rstrip("/"), auth, timeout, send)


class ApiAnswer(Struct, frozen=True):
    """An answer with its body read as JSON. `pause` is the requested pause in seconds."""

    status: int
    headers: Mapping[str, str]
    body: Any
    pause: float | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def code(self) -> str:
        """The code of a Microsoft API's error, in lower case: `0x80060892`."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("code", "")).lower() if isinstance(error, dict) else ""

    @property
    def told(self) -> str:
        """Return the status and the beginning of the error, for messages."""
        error = self.body.get("error", self.body) if isinstance(self.body, dict) else self.body
        text = error.get("message", error) if isinstance(error, dict) else error
        return f"{self.status} {' '.join(str(text or '').split())}"[:LONGEST].strip()


class JsonApi(Struct, frozen=True):
    """`json_api(…)`: `call` returns an answer of any status, `require` one that says it was done."""

    url: str
    auth: Token
    timeout: float
    send: Send | None

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        effect_key: str = "",
    ) -> ApiAnswer:
        """Send one request. Raises NotDone if it was not sent, OutcomeUnknown if no answer came.

        A write carries its effect key, so that the service's log can be matched with the step.
        """
        token = self._token()
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        body = b"" if json is None else msgspec.json.encode(json)
        all_headers = {
            "Accept": "application/json",
            **({"Content-Type": "application/json"} if body else {}),
            **({EFFECT_KEY_HEADER: effect_key} if effect_key else {}),
            **outgoing_headers.get(),
            **(headers or {}),
            "Authorization": f"Bearer {token}",
        }
        request = HttpRequest(method, f"{self.url}{path}{query}", all_headers, body, self.timeout)
        return _answer_of((self.send or shared_client().send)(request), token)

    def require(self, method: str, path: str, **given: Any) -> ApiAnswer:
        """Like `call`, and raise for every status but 2xx."""
        return self.settle(self.call(method, path, **given), f"{method} {self.host}")

    def settle(self, answer: ApiAnswer, what: str, *, wait: float | None = None) -> ApiAnswer:
        """Return a 2xx answer. A status that a server sends instead of acting means that nothing was done; after any
        other, such as 408, 499 or a 5xx, the outcome is unknown. `wait`: the pause after a 429 that does not name one.
        """
        if answer.ok:
            return answer
        if answer.status == TOO_MANY:
            raise NotDone(
                f"{what} has too many requests ({answer.told}); it can be tried later.",
                retry_after=answer.pause or wait,
            )
        if is_refusal(answer.status) or answer.status == CONFLICT:
            raise NotDone(f"{what} is refused ({answer.told}).", final=answer.status not in PASSING)
        raise OutcomeUnknown(
            f"{what} failed ({answer.told}); whether it was done is unknown.", retry_after=answer.pause
        )

    def _token(self) -> str:
        token = secrets_of(self.auth)[0] if isinstance(self.auth, Env) else self.auth()
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
            raise Misuse("auth= returned no bearer token; return it as text.")
        return token


def _answer_of(answer: HttpAnswer, token: str) -> ApiAnswer:
    """Read an answer and remove the token from it: a server may echo it, and messages are stored."""
    data = answer.body.replace(token.encode(), b"***")
    try:
        body = msgspec.json.decode(data) if data else None
    except msgspec.DecodeError:
        body = data.decode("utf-8", "replace")[:LONGEST]
    return ApiAnswer(answer.status, answer.headers, body, retry_after_of(answer))


def encoded(text: str) -> str:
    """Encode one segment of a path."""
    return quote(text, safe="")


def plain_values(values: Mapping[str, Any], *, without: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return a row's values as JSON values. Columns of the key are given by the key alone."""
    twice = sorted(set(values) & set(without))
    if twice:
        raise Misuse(f"{', '.join(twice)} is in key= and in values=; give it once, in key=.")
    try:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(values)))
    except (TypeError, ValueError) as error:
        raise Misuse(f"A row's values are plain: texts, numbers, dates ({error}); convert them first.") from None
    return found
