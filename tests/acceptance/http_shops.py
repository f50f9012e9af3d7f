"""One small shop in each framework, each in a server process of its own: `python -m … NAME PORT DIRECTORY [bare]`.

`POST /pay` does something outside, which only happens once if it is guarded. `/again` is declared safe to repeat.
Annotations are not deferred here: FastAPI and Litestar read those of functions inside functions.
"""

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.acceptance.places import SqlitePlace
from twiceproof.middleware import IdempotencyKey, Route, WsgiIdempotencyKey

ROUTES = [Route("/pay", required=True), Route("/again", repeat="safe")]
LONGEST = 60.0


class Till:
    """What the shops do outside: a line in a file. Each answer is different, so that a replay can be told."""

    def __init__(self, directory: Path) -> None:
        self.place = SqlitePlace("", directory)
        self.directory = directory

    def begin(self, order: dict[str, Any]) -> None:
        self.place.do(f"pay {order['id']}")
        if order.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)

    def waits(self, order: dict[str, Any]) -> bool:
        return bool(order.get("slow")) and not (self.directory / "go").exists()

    def receipt(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"receipt": uuid.uuid4().hex, "order": order["id"]}

    def pay(self, order: dict[str, Any]) -> dict[str, Any]:
        self.begin(order)
        until = time.monotonic() + LONGEST
        while self.waits(order) and time.monotonic() < until:
            time.sleep(0.01)
        return self.receipt(order)

    async def pay_async(self, order: dict[str, Any]) -> dict[str, Any]:
        self.begin(order)
        until = time.monotonic() + LONGEST
        while self.waits(order) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        return self.receipt(order)


COOKIE = "session=canary"


def make_fastapi(till: Till) -> Any:
    from fastapi import Body, FastAPI, Response

    api = FastAPI()

    def pay(response: Response, order: dict = Body()):  # noqa: B008 - FastAPI's own way
        response.headers["set-cookie"] = COOKIE
        return till.pay(order)

    for path in ("/pay", "/again"):
        api.post(path, status_code=201)(pay)
    return api


def make_starlette(till: Till) -> Any:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route as Path_

    async def pay(request):
        order = await request.json()
        return JSONResponse(await till.pay_async(order), 201, {"set-cookie": COOKIE})

    return Starlette(routes=[Path_(path, pay, methods=["POST"]) for path in ("/pay", "/again")])


def make_litestar(till: Till) -> Any:
    import litestar
    from litestar.params import JSONBody

    @litestar.post(["/pay", "/again"])
    async def pay(data: JSONBody[dict[str, Any]]) -> litestar.Response[dict[str, Any]]:
        return litestar.Response(await till.pay_async(data), status_code=201, headers={"set-cookie": COOKIE})

    return litestar.Litestar([pay])


def make_flask(till: Till) -> Any:
    import flask

    shop = flask.Flask("shop")

    @shop.post("/pay")
    @shop.post("/again")
    def pay():
        return till.pay(flask.request.get_json()), 201, {"set-cookie": COOKIE}

    return shop.wsgi_app


urlpatterns: list[Any] = []


def make_django(till: Till, application: str) -> Any:
    import django
    from django.conf import settings
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import JsonResponse
    from django.urls import path

    settings.configure(SECRET_KEY="x", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"])
    django.setup()

    def pay(request):
        answer = JsonResponse(till.pay(json.loads(request.body)), status=201)
        answer.set_cookie("session", "canary")
        return answer

    urlpatterns.extend([path("pay", pay), path("again", pay)])
    sys.modules.setdefault(__name__, sys.modules["__main__"])
    return ASGIHandler() if application == "asgi" else WSGIHandler()


MAKERS: dict[str, tuple[str, Callable[[Till], Any]]] = {
    "fastapi": ("asgi", make_fastapi),
    "starlette": ("asgi", make_starlette),
    "litestar": ("asgi", make_litestar),
    "django-asgi": ("asgi", lambda till: make_django(till, "asgi")),
    "flask": ("wsgi", make_flask),
    "django-wsgi": ("wsgi", lambda till: make_django(till, "wsgi")),
}


def main(name: str, port: int, directory: Path, bare: bool) -> None:
    kind, make = MAKERS[name]
    till = Till(directory)
    inner = make(till)
    ledger = till.place.app()
    if kind == "asgi":
        import uvicorn

        guarded = inner if bare else IdempotencyKey(inner, app=ledger, routes=ROUTES)
        uvicorn.run(guarded, host="127.0.0.1", port=port, log_level="warning")
        return
    guarded = inner if bare else WsgiIdempotencyKey(inner, app=ledger, routes=ROUTES)
    if name == "flask":
        from werkzeug.serving import make_server

        make_server("127.0.0.1", port, guarded, threaded=True).serve_forever()
    else:
        from socketserver import ThreadingMixIn
        from wsgiref.simple_server import WSGIServer
        from wsgiref.simple_server import make_server as make_plain_server

        class Server(ThreadingMixIn, WSGIServer):
            daemon_threads = True
            request_queue_size = 64

        make_plain_server("127.0.0.1", port, guarded, Server).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), "bare" in sys.argv[4:])
