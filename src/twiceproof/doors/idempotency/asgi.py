"""`IdempotencyKey`: the middleware for ASGI apps (FastAPI, Starlette, Litestar, Django)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ...drive import await_
from ..reply import Reply
from . import problems
from .asgi_exchange import AsgiExchange
from .door import Door, Ledger
from .route import Route
from .visit import LOOKED_AT, Visit, Who

__all__ = ["IdempotencyKey"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

NAMES = {name.encode(): name for name in LOOKED_AT}


class IdempotencyKey:
    """`api.add_middleware(IdempotencyKey, app=app)`, or around any ASGI app: `IdempotencyKey(inner, app=app)`."""

    def __init__(
        self,
        inner: AsgiApp,
        /,
        *,
        app: Ledger,
        routes: Iterable[Route | str] | None = None,
        principal: Callable[[Scope], Who] | None = None,
        anonymous: str | None = None,
        secret: str | bytes = b"",
    ) -> None:
        self._inner = inner
        self._door = Door(app, routes=routes, anonymous=anonymous, secret=secret)
        self._principal = principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._inner(scope, receive, send)
        method = scope["method"].upper()  # some servers pass on what was sent, and frameworks take `patch` for PATCH
        rule, path = self._door.place(method, scope["path"], scope.get("root_path", ""))
        if rule is None:
            return await self._inner(scope, receive, send)
        headers, length = _picked(scope["headers"])
        query = scope.get("query_string", b"").decode("latin-1")
        visit = self._door.read(rule, method, path, query, headers, lambda: self._who(scope, headers))
        if visit is None:
            return await self._inner(scope, receive, send)
        if isinstance(visit, Reply):
            return await _send(send, visit)
        body = await _read(receive, length, rule.route.largest_body)
        if isinstance(body, bytes):
            return await self._visit(visit, body, scope, receive, send)
        return None if body is None else await _send(send, body)

    async def _visit(self, visit: Visit, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        entered = await await_(self._door.enter(visit, body))
        if isinstance(entered, Reply):
            await _send(send, entered)
        elif entered is None:
            await self._inner(scope, _again(body, receive), send)
        else:
            await AsgiExchange(self._door, entered, body, scope, receive, send).run(self._inner)

    def _who(self, scope: Scope, headers: dict[str, str]) -> Who:
        return headers.get("authorization") if self._principal is None else self._principal(scope)


def _picked(headers: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, str], int]:
    """The headers that a door looks at, and the announced length. A header that came twice is joined, as HTTP does."""
    picked: dict[str, str] = {}
    length = -1
    for name, value in headers:
        known = NAMES.get(name)
        if known is not None:
            text = value.decode("latin-1")
            picked[known] = f"{picked[known]}, {text}" if known in picked else text
        elif name == b"content-length" and value.isdigit():
            length = int(value)
    return picked, length


async def _read(receive: Receive, length: int, most: int) -> bytes | Reply | None:
    """The whole body, or why not. None: the client has gone before it was all there, and nobody listens."""
    if length > most:
        return problems.too_large(most)
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            return problems.too_large(most)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _again(body: bytes, receive: Receive) -> Receive:
    """Hands over a body that was read already, then whatever else comes."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def _send(send: Send, reply: Reply) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
