"""The ASGI application of one server: its routes, limits and counts. Each request is a `Handling`."""

from __future__ import annotations

from collections.abc import Iterable

from ..app import App
from .access import Access, Trust
from .handling import Handling, Receive, Scope, Send
from .limits import Limits
from .policy import require_policy
from .rate import Buckets
from .room import Room
from .route import Route
from .router import Router
from .routes.table import ROUTES
from .station import Station
from .traces import find_traces

__all__ = ["Application", "make_application"]


def make_application(
    app: App, routes: Iterable[Route] = ROUTES, *, limits: Limits | None = None, trust: Trust = "loopback",
    behind_proxy: bool = False,
) -> Application:  # fmt: skip
    """For any ASGI server; `twiceproof serve` also keeps slow senders away, which an application cannot."""
    return Application(app, tuple(routes), limits or Limits(), trust, behind_proxy=behind_proxy)


class Application:
    """Refuses to begin with a route of which nobody said who may call it."""

    def __init__(
        self, app: App, routes: tuple[Route, ...], limits: Limits, trust: Trust, *, behind_proxy: bool = False
    ) -> None:
        require_policy(routes)
        self.app = app
        self.routes = routes
        self.limits = limits
        self.station = Station(app, routes)
        self.access = Access(app.store, app.settings.tenant, app.clock, trust=trust)
        self.router = Router(routes)
        self.behind_proxy = behind_proxy
        self.per_token, self.per_source = Buckets(limits.per_token), Buckets(limits.per_source)
        self.under_way = 0
        self.station.metrics.under_way.set_function(lambda: self.under_way)
        self.room = Room(limits.bodies)
        self.traces = find_traces()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Handling(self, scope, receive).run(send)
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
