"""The ASGI application: from a request to its route, and from the reply back. The only way to any route."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ..app import App
from ..doors.reply import Reply
from ..errors import TwiceproofError
from . import problems
from .call import Call, Refused
from .policy import POLICY, allows, require_policy
from .principal import Principal, operator
from .route import Route
from .router import Router, params_of
from .routes.table import ROUTES

__all__ = ["Application", "make_application"]

log = logging.getLogger("twiceproof.server")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def make_application(app: App, routes: Iterable[Route] = ROUTES) -> Application:
    return Application(app, tuple(routes))


class Application:
    """One per server."""

    def __init__(self, app: App, routes: tuple[Route, ...]) -> None:
        require_policy(routes)
        self.app = app
        self.routes = routes
        self._router = Router(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        reply = await self._answer(scope, receive)
        await _send(send, reply)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        raw_path = scope["raw_path"].decode("latin-1")
        found = self._router.find(raw_path)
        if found is None:
            return problems.not_found()
        node, values = found
        route = node.routes.get(scope["method"])
        if route is None:
            return problems.method_not_allowed(node.routes)
        params = params_of(route, values)
        if params is None:
            return problems.not_found()
        return await self._admit(route, params, scope, receive)

    async def _admit(self, route: Route, params: dict[str, str], scope: Scope, receive: Receive) -> Reply:
        principal = self._principal(scope)
        if not allows(POLICY[route.method, route.path], principal, self.app.settings.tenant):
            return problems.forbidden(POLICY[route.method, route.path])
        call = Call(
            self.app, principal, method=route.method, path=scope["raw_path"].decode("latin-1"), params=params,
            raw_headers=scope["headers"], body=await _body(receive), raw_query=scope["query_string"].decode("latin-1"),
            client=(scope.get("client") or ("", 0))[0], scheme=scope.get("scheme", "http"), now=self.app.clock.now(),
        )  # fmt: skip
        return await _handled(route, call)

    def _principal(self, scope: Scope) -> Principal:
        return operator(self.app.settings.tenant)


async def _handled(route: Route, call: Call) -> Reply:
    try:
        return await route.handle(call)
    except Refused as refused:
        return refused.reply
    except TwiceproofError as error:
        reply = problems.of_error(error)
        if reply is None or reply.status >= 500:
            log.warning("%s %s: %s", route.method, route.path, error)
        return reply or problems.broken()
    except Exception:
        log.exception("%s %s broke", route.method, route.path)
        return problems.broken()


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _send(send: Send, reply: Reply) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
