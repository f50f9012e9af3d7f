"""ASGI application: limits, auth, routing, answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ..app.app import App
from ..errors import TwiceproofError
from ..inbound.envelope import InboundOutcome, collect
from ..inbound.reply import Reply, problem, retry_after
from . import problems
from .auth import POLICY, Access, Trust, Via, address_in, allows, is_loopback, rate_limit_subject, require_policy
from .body import BodyBudget, Gone, Reservation, read_body
from .limits import Buckets, ServerLimits
from .monitoring import ServerStatus, find_traces, write_access
from .request import ApiRequest, RequestRefused, headers_of, split_root_path
from .routes import ROUTES
from .routing import ApiRoute, Router, params_of, require_known
from .tokens import Principal
from .tokens import Scope as Need

__all__ = ["Application", "Receive", "RequestHandler", "Scope", "Send", "make_application"]


log = logging.getLogger("twiceproof.server")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# With two of these, whoever stands before us may have looked at the other one.
ONCE = (b"host", b"authorization", b"content-type", b"content-encoding", b"origin", b"idempotency-key")
CLOSE = (b"connection", b"close")
UNKNOWN = "unknown"  # a caller whom the proxy names by no address
NOWHERE = "(none)"  # the route of what has none, in counts and log lines


class RequestHandler:
    """Filled as more becomes known: what is not known at a refusal was not reached."""

    __slots__ = ("began", "client", "desk", "headers", "path", "principal", "receive", "root", "route", "scope")

    def __init__(self, desk: Application, scope: Scope, receive: Receive) -> None:
        self.desk = desk
        self.scope = scope
        self.receive = receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.client = self._client()
        self.root, self.path = split_root_path(scope)
        self.route: ApiRoute | None = None
        self.principal: Principal | None = None
        self.began = time.perf_counter()

    async def run(self, send: Send) -> None:
        told = collect()
        try:
            reply = await (self._reply() if self.desk.traces is None else self._traced(told))
        except Gone:
            self.desk.station.metrics.refused("gone")
            return
        headers = headers_of(reply, self.root)
        if self.desk.station.draining:
            headers.append(CLOSE)  # whoever sends more on this connection would find it closed
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})
        self._count(reply.status, told)

    def _count(self, status: int, told: list[InboundOutcome]) -> None:
        seconds = time.perf_counter() - self.began
        name, path = (self.route.name, self.route.path) if self.route is not None else (NOWHERE, NOWHERE)
        metrics = self.desk.station.metrics
        metrics.answered(name, status, seconds)
        if told:
            metrics.told(told)
        write_access(self.scope["method"], path, status, seconds, self.principal, self.client, told)

    async def _traced(self, told: list[InboundOutcome]) -> Reply:
        assert self.desk.traces is not None  # noqa: S101 - for mypy
        found = self.desk.router.find(self.path)
        route = found[0].routes.get(self.scope["method"]) if found is not None else None
        with self.desk.traces.span(self.scope["method"], route.path if route else NOWHERE, self.headers) as span:
            reply = await self._reply()
            self.desk.traces.end(span, reply.status, told)
        return reply

    async def _reply(self) -> Reply:
        try:
            return await self._routed()
        except (RequestRefused, Gone) as end:
            if isinstance(end, Gone):
                raise
            return end.reply
        except TwiceproofError as error:
            reply = problems.of_error(error)
            if reply is None or reply.status >= 500:
                log.warning("%s: %s", self.route.name if self.route else NOWHERE, error)
            return reply or problems.broken()
        except Exception:
            log.exception("%s broke", self.route.name if self.route else NOWHERE)
            return problems.broken()

    # -- on the way to the route -----------------------------------------------------------------

    async def _routed(self) -> Reply:
        self._refuse_twice()
        found = self.desk.router.find(self.path)
        if found is None:
            self._limit(self.desk.per_source, self.client)
            return problems.not_found(self.path)
        node, values = found
        method = "GET" if self.scope["method"] == "HEAD" else self.scope["method"]
        route = node.routes.get(method)
        if route is None:
            self._limit(self.desk.per_source, self.client)
            return problems.method_not_allowed(node.routes)
        self.route = route
        params = params_of(route, values)
        if params is None:
            self._limit(self.desk.per_source, self.client)
            return problems.not_found(self.path)
        scope = POLICY[route.method, route.path]
        principal = self.principal = await self._who(scope, route, params)
        if not allows(scope, principal, self.desk.app.settings.tenant):
            return _not_allowed(route, principal)
        share = Reservation(self.desk.room)
        try:
            return await self._carried_out(route, params, principal, share)
        finally:
            share.end()

    async def _carried_out(
        self, route: ApiRoute, params: dict[str, str], principal: Principal, share: Reservation
    ) -> Reply:
        desk, app = self.desk, self.desk.app
        if principal.tenant != app.settings.tenant:
            app = app.of(principal.tenant)
        largest = route.largest if route.room is None else route.room(app, params)
        depth = desk.limits.depth if route.is_looked_into else None
        body = await read_body(self.headers, self.receive, largest, depth, share)
        self.began = time.perf_counter()  # how slowly it came is not our doing
        if desk.under_way >= desk.limits.requests:
            desk.station.metrics.refused("busy")
            return _too_many()
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
            station=desk.station,
        )
        require_known(call, route)
        desk.under_way += 1
        try:
            return await route.handle(call)
        finally:
            desk.under_way -= 1

    async def _who(self, scope: Need, route: ApiRoute, params: dict[str, str]) -> Principal:
        """A token has a bucket of its own; everybody else, and whoever guesses tokens, that of their address."""
        access, source = self.desk.access, self.desk.per_source
        theirs = route.handed_out and not access.is_ours(self.headers)
        if theirs or (route.signs_on is not None and route.signs_on(self.desk.app, params)):
            principal = access.anybody
        else:
            if not access.knows(self.headers):
                self._limit(source, self.client, only_look=True)  # or each guess would cost the store a look
            try:
                principal = await access.principal(self.headers, scope, self._via())
            except RequestRefused:
                self._limit(source, self.client)
                raise
        if principal.name:
            self._limit(self.desk.per_token, f"{principal.tenant}/{principal.name}")
        else:
            self._limit(source, self.client)
        return principal

    def _limit(self, buckets: Buckets, caller: str, *, only_look: bool = False) -> None:
        """This machine's own callers are not counted by address: behind a proxy, all would be one."""
        if buckets is self.desk.per_source:
            if is_loopback(caller):
                return
            caller = rate_limit_subject(caller)
        now = self.desk.app.clock.monotonic()
        wait = float(buckets.is_empty(caller, now)) if only_look else buckets.take(caller, now)
        if wait:
            self.desk.station.metrics.refused("rate")
            raise RequestRefused(_too_often(wait))

    # -- what the request says -------------------------------------------------------------------

    def _refuse_twice(self) -> None:
        if len(self.headers) == len(self.scope["headers"]):  # nearly always
            return
        names = [name for name, _ in self.scope["headers"]]
        if any(names.count(name) > 1 for name in ONCE):
            self._limit(self.desk.per_source, self.client)
            self.desk.station.metrics.refused("ambiguous")
            raise RequestRefused(problems.ambiguous())

    def _via(self) -> Via:
        client = self.scope.get("client")
        return Via(client[0] if client else "", self.scope.get("http_version", "1.1"))

    def _client(self) -> str:
        """Behind a proxy, whom the proxy names last: the ones before are the caller's own word.

        Those whom it names by no address (`unix:`, `unknown`) are one caller: as the proxy itself, on this machine,
        they would have no limit.
        """
        client = self.scope.get("client")
        said = self.headers.get(b"x-forwarded-for") if self.desk.behind_proxy else None
        if said is not None:
            return address_in(said.decode("latin-1").rpartition(",")[2]) or UNKNOWN
        return client[0] if client else ""


def _not_allowed(route: ApiRoute, principal: Principal) -> Reply:
    if not principal.name:
        return problems.unauthorized("This address needs a token.")
    return problems.forbidden(POLICY[route.method, route.path])


def _too_many() -> Reply:
    return problem(
        503,
        "busy",
        "This server has as many requests under way as it takes.",
        next_move="Send the same request again; it is safe.",
        headers=[retry_after(1)],
    )


def _too_often(seconds: float) -> Reply:
    return problem(
        429,
        "too-often",
        "More requests came than one caller may send.",
        next_move="Send the same request again, after the time in Retry-After.",
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
    """For any ASGI server; `twiceproof serve` also keeps slow senders away, which an application cannot."""
    return Application(app, tuple(routes), limits or ServerLimits(), trust, behind_proxy=behind_proxy)


class Application:
    """Refuses to begin with a route of which nobody said who may call it."""

    def __init__(
        self, app: App, routes: tuple[ApiRoute, ...], limits: ServerLimits, trust: Trust, *, behind_proxy: bool = False
    ) -> None:
        require_policy(routes)
        self.app = app
        self.routes = routes
        self.limits = limits
        self.station = ServerStatus(app, routes)
        self.access = Access(app.store, app.settings.tenant, app.clock, trust=trust)
        self.router = Router(routes)
        self.behind_proxy = behind_proxy
        self.per_token, self.per_source = Buckets(limits.per_token), Buckets(limits.per_source)
        self.under_way = 0
        self.station.metrics.under_way.set_function(lambda: self.under_way)
        self.room = BodyBudget(limits.bodies)
        self.traces = find_traces()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await RequestHandler(self, scope, receive).run(send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await _live(receive, send)


async def _live(receive: Receive, send: Send) -> None:
    """Nothing is opened or closed with the server: the app is its owner's."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
