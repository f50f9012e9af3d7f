"""Web apps behind each middleware: `python -m bench.contenders.middleware NAME PORT URL` serves one with uvicorn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["APPS", "BODY", "make_app"]

BODY = b'{"id": 10492, "total": 120}'

ANSWER = {"receipt": "r-10492", "total": 120}


def fastapi() -> Any:
    from fastapi import FastAPI

    api = FastAPI()

    @api.post("/pay", status_code=201)
    async def pay(order: dict[str, Any]) -> dict[str, Any]:
        return ANSWER

    return api


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def pay(request: Request) -> JSONResponse:
        await request.json()
        return JSONResponse(ANSWER, 201)

    return Starlette(routes=[Route("/pay", pay, methods=["POST"])])


def ours(make: Callable[[], Any], url: str) -> Any:
    from twiceproof import App
    from twiceproof.middleware import IdempotencyKey

    api = make()
    api.add_middleware(IdempotencyKey, app=App(url, best_effort=True))
    return api


def header(make: Callable[[], Any], url: str) -> Any:
    """asgi-idempotency-header. Two backends: a dictionary, and Redis."""
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends.memory import MemoryBackend
    from idempotency_header_middleware.backends.redis import RedisBackend

    api = make()
    if url == "memory://":
        api.add_middleware(IdempotencyHeaderMiddleware, backend=MemoryBackend())
        return api
    from redis.asyncio import Redis

    api.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(Redis.from_url(url)))
    return api


def fastapi_idempotency(make: Callable[[], Any], url: str) -> Any:
    """fastapi-idempotency. One backend that needs nothing else: a dictionary."""
    from fastapi_idempotency import IdempotencyMiddleware

    api = make()
    api.add_middleware(IdempotencyMiddleware)
    return api


APPS: dict[str, Callable[[str], Any]] = {
    "bare FastAPI": lambda url: fastapi(),
    "bare Starlette": lambda url: starlette(),
    "IdempotencyKey, FastAPI": lambda url: ours(fastapi, url),
    "IdempotencyKey, Starlette": lambda url: ours(starlette, url),
    "asgi-idempotency-header, FastAPI": lambda url: header(fastapi, url),
    "fastapi-idempotency, FastAPI": lambda url: fastapi_idempotency(fastapi, url),
}


def make_app(name: str, url: str) -> Any:
    return APPS[name](url)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(make_app(sys.argv[1], sys.argv[3]), host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
