"""The ASGI application: limits, authentication, routing and responses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ..app.app import App
from ..errors import BadWrite, TwiceproofError
from ..inbound.reply import Reply, problem, retry_after
from ..inbound.source import InboundOutcome, collect
from . import problems
from .auth import (
    Access,
    Peer,
    Trust,
    address_in,
    allows,
    is_loopback,
    rate_limit_subject,
    require_policy,
    required_scope,
)
from .limits import BodyBudget, Buckets, ClientDisconnected, Reservation, ServerLimits, read_body
from .monitoring import ServerStatus, find_traces, write_access
from .request import ApiRequest, RequestRefused, StreamReply, headers_of, split_root_path
from .routes import ROUTES
from .routing import ApiRoute, Router, params_of, require_known
from .tokens import Principal
from .tokens import Scope as Need
from .ui.dashboard import Dashboard
from .ui.pages import PAGES

__all__ = ["Application", "Receive", "RequestHandler", "Scope", "Send", "make_application"]


log = logging.getLogger("twiceproof.server")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Headers that may occur only once: with two of them, a proxy in front may have checked the other one.
ONCE = (b"host", b"authorization", b"content-type", b"content-encoding", b"origin", b"idempotency-key")
CLOSE = (b"connection", b"close")
UNKNOWN = "unknown"  # a client without an address in the proxy's header
PROGRAMS = ("/v1/", "/hooks/")  # what programs call
NO_ROUTE = "(none)"  # for requests without a route, in metrics and logs


class RequestHandler:
    """Handles one request. `route` and `principal` are None until they are determined."""

    __slots__ = ("application", "began", "client", "headers", "path", "principal", "receive", "root", "route", "scope")

    def __init__(self, application: Application, scope: Scope, receive: Receive) -> None:
        self.application = application
        self.scope = scope
        self.receive = receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.client = self._client()
        self.root, self.path = split_root_path(scope)
        self.route: ApiRoute | None = None
        self.principal: Principal | None = None
        self.began = time.perf_counter()

    async def run(self, send: Send) -> None:
        outcomes = collect()
        try:
            reply = await (self._reply() if self.application.traces is None else self._traced(outcomes))
        except ClientDisconnected:
            self.application.server_status.metrics.count_refusal("gone")
            return
        if self._is_page():
            query = self.scope["query_string"].decode("latin-1")
            asked = f"{self.path}?{query}" if query else self.path
            reply = self.application.dashboard.as_page(reply, self.scope["method"], self.root, asked, self.principal)
        headers = headers_of(reply, self.root)
        if self.application.server_status.draining:
            headers.append(CLOSE)  # the connection will be closed, so the client must not reuse it
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        if isinstance(reply, StreamReply):
            await self._stream(reply, send)
        else:
            await send({"type": "http.response.body", "body": reply.body})
        self._count(reply.status, outcomes)

    async def _stream(self, reply: StreamReply, send: Send) -> None:
        """Send the pieces as they come. It is not counted as a request under way, and ends when the server drains."""
        assert reply.pieces is not None  # noqa: S101 - for mypy
        gone = asyncio.ensure_future(self._disconnected())
        try:
            async for piece in reply.pieces(gone):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            gone.cancel()
            await send({"type": "http.response.body", "body": b""})

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def _is_page(self) -> bool:
        """Whether a problem is shown as a page: on addresses of the dashboard, and where a browser finds nothing."""
        if self.route is not None:
            return self.route.page
        return not self.path.startswith(PROGRAMS) and b"text/html" in self.headers.get(b"accept", b"")

    def _count(self, status: int, outcomes: list[InboundOutcome]) -> None:
        seconds = time.perf_counter() - self.began
        name, path = (self.route.name, self.route.path) if self.route is not None else (NO_ROUTE, NO_ROUTE)
        metrics = self.application.server_status.metrics
        metrics.count_response(name, status, seconds)
        if outcomes:
            metrics.count_outcomes(outcomes)
        write_access(self.scope["method"], path, status, seconds, self.principal, self.client, outcomes)

    async def _traced(self, outcomes: list[InboundOutcome]) -> Reply:
        assert self.application.traces is not None  # noqa: S101 - for mypy
        found = self.application.router.find(self.path)
        route = found[0].routes.get(self.scope["method"]) if found is not None else None
        with self.application.traces.span(
            self.scope["method"], route.path if route else NO_ROUTE, self.headers
        ) as span:
            reply = await self._reply()
            self.application.traces.end(span, reply.status, outcomes)
        return reply

    async def _reply(self) -> Reply:
        try:
            return await self._routed()
        except (RequestRefused, ClientDisconnected) as end:
            if isinstance(end, ClientDisconnected):
                raise
            return end.reply
        except TwiceproofError as error:
            reply = problems.of_error(error)
            if reply is None or reply.status >= 500 or isinstance(error, BadWrite):
                log.warning("%s: %s", self.route.name if self.route else NO_ROUTE, error)
            return reply or problems.internal_error()
        except Exception:
            log.exception("%s raised an error", self.route.name if self.route else NO_ROUTE)
            return problems.internal_error()

    # -- routing and authentication --------------------------------------------------------------

    async def _routed(self) -> Reply:
        self._refuse_duplicate_headers()
        found = self.application.router.find(self.path)
        if found is None:
            self._limit(self.application.per_source, self.client)
            return problems.not_found(self.path)
        node, values = found
        method = "GET" if self.scope["method"] == "HEAD" else self.scope["method"]
        route = node.routes.get(method)
        if route is None:
            self._limit(self.application.per_source, self.client)
            if method == "GET" and any(one.page for one in node.routes.values()):
                return self._page_above()
            return problems.method_not_allowed(node.routes)
        self.route = route
        params = params_of(route, values)
        if params is None:
            self._limit(self.application.per_source, self.client)
            return problems.not_found(self.path)
        scope = required_scope(route)
        principal = self.principal = await self._authenticate(scope, route, params)
        if not allows(scope, principal, self.application.app.settings.tenant):
            return _not_allowed(route, principal)
        reservation = Reservation(self.application.body_budget)
        try:
            return await self._handle(route, params, principal, reservation)
        finally:
            reservation.end()

    def _page_above(self) -> Reply:
        """Lead from the address of a form to the page that has it: a browser comes here by a reload, or by a login."""
        path, found = self.path, None
        while path and (found is None or "GET" not in found[0].routes):
            path = path.rpartition("/")[0]
            found = self.application.router.find(path)
        return Reply(303, (("location", path or "/"),))

    async def _handle(
        self, route: ApiRoute, params: dict[str, str], principal: Principal, reservation: Reservation
    ) -> Reply:
        application, app = self.application, self.application.app
        if principal.tenant != app.settings.tenant:
            app = app.of(principal.tenant)
        largest = route.largest if route.largest_for is None else route.largest_for(app, params)
        depth = application.limits.depth if route.is_json else None
        body = await read_body(self.headers, self.receive, largest, depth, reservation)
        self.began = time.perf_counter()  # the time the client took to send it does not count
        if application.active_requests >= application.limits.requests:
            application.server_status.metrics.count_refusal("busy")
            return _at_capacity()
        call = ApiRequest(
            app,
            principal,
            method=self.scope["method"],
            root=self.root,
            path=self.path,
            params=params,
            raw_headers=self.scope["headers"],
            body=body,
            raw_query=self.scope["query_string"].decode("latin-1"),
            client=self.client,
            scheme=self.scope.get("scheme", "http"),
            now=app.clock.now(),
            server_status=application.server_status,
        )
        require_known(call, route)
        application.active_requests += 1
        try:
            return await route.handle(call)
        finally:
            application.active_requests -= 1

    async def _authenticate(self, scope: Need, route: ApiRoute, params: dict[str, str]) -> Principal:
        """Identify the caller and apply its rate limit: per token, or per address without a valid token."""
        access, source = self.application.access, self.application.per_source
        if route.page:
            return await self._viewer(scope)
        is_foreign = route.secret_path and not access.is_own_token(self.headers)
        if is_foreign or (
            route.foreign_authorization is not None and route.foreign_authorization(self.application.app, params)
        ):
            principal = access.anonymous
        else:
            if not access.is_cached(self.headers):
                self._limit(
                    source, self.client, peek=True
                )  # before the lookup, or each guessed token would cost a read
            try:
                principal = await access.principal(self.headers, scope, self._peer())
            except RequestRefused:
                self._limit(source, self.client)
                raise
        if principal.name:
            self._limit(self.application.per_token, f"{principal.tenant}/{principal.name}")
        else:
            self._limit(source, self.client)
        return principal

    async def _viewer(self, scope: Need) -> Principal:
        """Identify who looks at a page, by the session, and apply the same rate limits."""
        self._limit(self.application.per_source, self.client, peek=True)
        principal = await self.application.dashboard.principal(self.headers, scope, self._peer())
        if principal.name:
            self._limit(self.application.per_token, f"{principal.tenant}/{principal.name}")
        else:
            self._limit(self.application.per_source, self.client)
        return principal

    def _limit(self, buckets: Buckets, caller: str, *, peek: bool = False) -> None:
        """Apply a rate limit. Loopback clients are not limited by address: behind a proxy, all share one."""
        if buckets is self.application.per_source:
            if is_loopback(caller):
                return
            caller = rate_limit_subject(caller)
        now = self.application.app.clock.monotonic()
        wait = float(buckets.is_empty(caller, now)) if peek else buckets.take(caller, now)
        if wait:
            self.application.server_status.metrics.count_refusal("rate")
            raise RequestRefused(_rate_limited(wait))

    # -- the request's headers and connection ----------------------------------------------------

    def _refuse_duplicate_headers(self) -> None:
        if len(self.headers) == len(self.scope["headers"]):  # the usual case
            return
        names = [name for name, _ in self.scope["headers"]]
        if any(names.count(name) > 1 for name in ONCE):
            self._limit(self.application.per_source, self.client)
            self.application.server_status.metrics.count_refusal("duplicate_header")
            raise RequestRefused(problems.duplicate_header())

    def _peer(self) -> Peer:
        client = self.scope.get("client")
        return Peer(client[0] if client else "", self.scope.get("http_version", "1.1"))

    def _client(self) -> str:
        """Return the client's address; behind a proxy the last one it names, because clients can forge the others.

        Clients without an address (`unix:`, `unknown`) count as one: as the proxy itself, on loopback, they would have
        no limit.
        """
        client = self.scope.get("client")
        forwarded = self.headers.get(b"x-forwarded-for") if self.application.behind_proxy else None
        if forwarded is not None:
            return address_in(forwarded.decode("latin-1").rpartition(",")[2]) or UNKNOWN
        return client[0] if client else ""


def _not_allowed(route: ApiRoute, principal: Principal) -> Reply:
    if not principal.name:
        return problems.unauthorized("This address requires a token.")
    return problems.forbidden(required_scope(route))


def _at_capacity() -> Reply:
    return problem(
        503,
        "busy",
        "This server has reached its limit of concurrent requests.",
        next_move="Send the same request again; it is safe.",
        headers=[retry_after(1)],
    )


def _rate_limited(seconds: float) -> Reply:
    return problem(
        429,
        "rate-limited",
        "This caller has exceeded its rate limit.",
        next_move="Send the same request again after Retry-After seconds.",
        headers=[retry_after(seconds)],
    )


def make_application(
    app: App,
    routes: Iterable[ApiRoute] = ROUTES,
    *,
    limits: ServerLimits | None = None,
    trust: Trust = "loopback",
    behind_proxy: bool = False,
) -> Application:
    """Create the application for any ASGI server. `twiceproof serve` also disconnects slow clients, which an
    application cannot.
    """
    return Application(app, tuple(routes), limits or ServerLimits(), trust, behind_proxy=behind_proxy)


class Application:
    """The ASGI application. Every route must have an entry in the access policy."""

    def __init__(
        self, app: App, routes: tuple[ApiRoute, ...], limits: ServerLimits, trust: Trust, *, behind_proxy: bool = False
    ) -> None:
        require_policy(routes)
        self.app = app
        self.routes = routes
        self.limits = limits
        self.server_status = ServerStatus(app, routes)
        self.access = Access(app.store, app.settings.tenant, app.clock, trust=trust)
        self.dashboard = Dashboard(app, self.access, PAGES, limits.depth)
        self.router = Router((*routes, *self.dashboard.routes))
        self.behind_proxy = behind_proxy
        self.per_token, self.per_source = Buckets(limits.per_token), Buckets(limits.per_source)
        self.active_requests = 0
        self.server_status.metrics.active_requests.set_function(lambda: self.active_requests)
        self.body_budget = BodyBudget(limits.bodies)
        self.traces = find_traces()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await RequestHandler(self, scope, receive).run(send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await _run_lifespan(receive, send)


async def _run_lifespan(receive: Receive, send: Send) -> None:
    """Acknowledge lifespan events. The app is opened and closed by its owner, not by the server."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
