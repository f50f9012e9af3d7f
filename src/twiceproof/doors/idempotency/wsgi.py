"""`WsgiIdempotencyKey`: the middleware for WSGI apps (Flask, Django)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

from ...drive import block
from ..reply import Reply
from . import problems
from .door import Door, Ledger
from .route import Route
from .visit import LOOKED_AT, Visit, Who
from .wsgi_exchange import StartResponse, WsgiExchange, status_line

__all__ = ["WsgiIdempotencyKey"]

Environ = dict[str, Any]
WsgiApp = Callable[[Environ, Any], Iterable[bytes]]

NAMES = {
    name: "CONTENT_TYPE" if name == "content-type" else "HTTP_" + name.upper().replace("-", "_") for name in LOOKED_AT
}


class WsgiIdempotencyKey:
    """`flask_app.wsgi_app = WsgiIdempotencyKey(flask_app.wsgi_app, app=app)`, or around any WSGI app."""

    def __init__(
        self,
        inner: WsgiApp,
        /,
        *,
        app: Ledger,
        routes: Iterable[Route | str] | None = None,
        principal: Callable[[Environ], Who] | None = None,
        anonymous: str | None = None,
        secret: str | bytes = b"",
    ) -> None:
        self._inner = inner
        self._door = Door(app, routes=routes, anonymous=anonymous, secret=secret)
        self._principal = principal

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        # In capitals: servers pass on what was sent, and Flask and Django take `patch` for PATCH.
        method = environ["REQUEST_METHOD"].upper()
        rule, path = self._door.place(method, _path(environ), _text(environ.get("SCRIPT_NAME", "")))
        if rule is None:
            return self._inner(environ, start_response)
        headers = {name: environ[variable] for name, variable in NAMES.items() if variable in environ}
        query = environ.get("QUERY_STRING", "")
        visit = self._door.read(rule, method, path, query, headers, lambda: self._who(environ, headers))
        if visit is None:
            return self._inner(environ, start_response)
        if isinstance(visit, Reply):
            return _answer(start_response, visit)
        body = _read(environ, rule.route.largest_body)
        if isinstance(body, Reply):
            return _answer(start_response, body)
        return self._visit(visit, body, environ, start_response)

    def _visit(
        self, visit: Visit, body: bytes, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:  # fmt: skip
        entered = block(self._door.enter(visit, body))
        if isinstance(entered, Reply):
            return _answer(start_response, entered)
        environ["wsgi.input"] = BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        if entered is None:
            return self._inner(environ, start_response)
        return WsgiExchange(self._door, entered, environ, start_response).run(self._inner)

    def _who(self, environ: Environ, headers: dict[str, str]) -> Who:
        return headers.get("authorization") if self._principal is None else self._principal(environ)


def _path(environ: Environ) -> str:
    return _text(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")) or "/"


def _text(path: str) -> str:
    """As it was written: WSGI hands over its bytes as Latin-1."""
    return path.encode("latin-1").decode("utf-8", "surrogateescape")


def _read(environ: Environ, most: int) -> bytes | Reply:
    announced = environ.get("CONTENT_LENGTH") or ""
    if announced.isdecimal():
        length = int(announced)
        if length > most:
            return problems.too_large(most)
        body: bytes = environ["wsgi.input"].read(length)
        return body if len(body) == length else problems.cut_short()
    if not environ.get("wsgi.input_terminated"):  # the server cannot say where the body ends: it has none
        return b""
    body = environ["wsgi.input"].read(most + 1)
    return body if len(body) <= most else problems.too_large(most)


def _answer(start_response: StartResponse, reply: Reply) -> Iterable[bytes]:
    headers = [pair for pair in reply.headers if pair[0] != "connection"]  # the server's own, by PEP 3333
    start_response(status_line(reply.status), headers)
    return [reply.body]
