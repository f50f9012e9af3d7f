"""Apps that are mounted below a path: by another app, or by a word on their server's command line."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.routing import Route as Path
from starlette.testclient import TestClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client as WsgiClient

from twiceproof import App
from twiceproof.middleware import IdempotencyKey, Route, WsgiIdempotencyKey

HEADERS = {"idempotency-key": "k-1", "authorization": "Bearer ann"}


@pytest.fixture
def paid() -> list[str]:
    return []


@pytest.fixture(params=["mounted", "root path", "script name"])
def client(request: pytest.FixtureRequest, app: App, paid: list[str]) -> Any:
    """Of a shop whose own address is /pay, below /api. Makes one with these routes."""

    async def pay(asked: Any) -> PlainTextResponse:
        paid.append("asgi")
        return PlainTextResponse("paid")

    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        paid.append(environ["PATH_INFO"])
        start_response("200 OK", [("content-type", "text/plain")])
        return [b"paid"]

    def make(*routes: Route) -> Any:
        if request.param == "script name":
            guarded = WsgiIdempotencyKey(wsgi, app=app, routes=routes)
            return WsgiClient(DispatcherMiddleware(wsgi, {"/api": guarded}))
        shop = IdempotencyKey(Starlette(routes=[Path("/pay", pay, methods=["POST"])]), app=app, routes=routes)
        if request.param == "mounted":
            return TestClient(Starlette(routes=[Mount("/api", shop)]))
        return TestClient(shop, root_path="/api")

    return make


@pytest.mark.parametrize("path", ["/pay", "/api/pay", "/{what}", "/api/{what}"])
def test_a_route_is_guarded_with_and_without_where_its_app_is_mounted(client: Any, paid: list[str], path: str) -> None:
    asking = client(Route(path, required=True))
    assert asking.post("/api/pay").status_code == 400
    response = [asking.post("/api/pay", headers=HEADERS).headers["idempotent-replayed"] for _ in range(2)]
    assert (response, len(paid)) == (["false", "true"], 1)


@pytest.mark.parametrize("path", ["/api", "/api/api/pay", "/ay"])
def test_other_routes_are_left_alone(client: Any, paid: list[str], path: str) -> None:
    assert client(Route(path, required=True)).post("/api/pay").status_code == 200
