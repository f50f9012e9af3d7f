"""ASGI middleware."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ..inbound.reply import Reply
from ..operations import await_
from . import problems
from .guard import IdempotencyGuard, RequestLedger
from .responses import AnswerCutShort, AnswerOvertaken, Recording
from .routes import LOOKED_AT, HeldRequest, KeyedRequest, Route, Who, marks
from .status_policy import MARK

__all__ = ["AsgiExchange", "IdempotencyKey"]


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# With these, bytes would reach the client without passing by here.
UNSEEN = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})


class AsgiExchange:
    """Carried to its end also when the client has gone: it will come back and ask."""

    def __init__(
        self,
        door: IdempotencyGuard,
        turn: HeldRequest,
        body: bytes,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        self._door = door
        self._turn = turn
        self._body: bytes | None = body
        self._scope = scope
        self._receive_on = receive
        self._send_on = send
        self._recording = Recording(turn.visit.rule.route.largest_answer)
        self._start: Message | None = None  # held back until its body comes
        self._started = False
        self._gone = False
        self._over = False
        self._loose = asyncio.Event()  # set when the app may hear that the client has gone

    async def run(self, inner: Callable[..., Awaitable[None]]) -> None:
        scope = self._scope
        if not UNSEEN.isdisjoint(scope.get("extensions") or ()):
            seen = {name: value for name, value in scope["extensions"].items() if name not in UNSEEN}
            self._scope = scope = {**scope, "extensions": seen}
        scope[MARK] = self._turn
        try:
            await inner(scope, self._receive, self._send)
        except GeneratorExit:  # thrown away, and cannot wait any more
            self._door.abandon(self._turn)
            raise
        except BaseException as error:
            if not self._turn.left:
                await await_(self._door.give_up(self._turn, error))
            raise
        finally:
            self._end()
        if not self._turn.left:
            await await_(self._door.give_up(self._turn, AnswerCutShort("the answer was never finished")))

    async def _receive(self) -> Message:
        """The body, once. That the client hangs up is not passed on: the work would be cut off half done."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._loose.wait()
        return {"type": "http.disconnect"} if self._over else await self._receive_on()

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._begin(message)
        elif kind == "http.response.body" and not self._turn.left:
            await self._pass_by(message)
        else:
            await self._pass_on(message)

    def _begin(self, message: Message) -> None:
        headers = list(message.get("headers", ()))
        self._recording.start(message["status"], [(n.decode("latin-1"), v.decode("latin-1")) for n, v in headers])
        marked = [(n.encode(), v.encode("latin-1")) for n, v in marks(self._turn.visit, replayed=False)]
        self._start = {**message, "headers": [*headers, *marked]}

    async def _pass_by(self, message: Message) -> None:
        self._recording.add(message.get("body", b""))
        if message.get("more_body", False) and not self._recording.whole:
            await self._pass_on(message)
            self._let_go_if_full()
            return
        # Whoever has the whole answer may rely on it: so it is on record before its end is passed on.
        instead = await await_(self._door.leave(self._turn, self._recording, self._scope))
        if isinstance(instead, Reply) and not self._started:
            self._start, message = _messages(instead)
            await self._pass_on(message)
            self._gone = True  # what the app still sends belongs to an answer that does not count
        elif isinstance(instead, Reply):
            self._gone = True  # without its end, the client cannot take it for whole
            raise AnswerOvertaken
        else:
            await self._pass_on(message)
        if not message.get("more_body", False):
            self._end()

    def _let_go_if_full(self) -> None:
        """A stream without end must hear that nobody listens, or it goes on for ever."""
        if self._recording.full:
            self._loose.set()
            if self._gone:
                raise OSError("the client has hung up, and the answer is larger than is kept")

    def _end(self) -> None:
        self._over = True
        self._loose.set()

    async def _pass_on(self, message: Message) -> None:
        if self._gone:
            return
        try:
            if self._start is not None:
                start, self._start, self._started = self._start, None, True
                await self._send_on(start)
            await self._send_on(message)
        except OSError:  # the client has hung up; the record is for when it comes back
            self._gone = True


def _messages(reply: Reply) -> tuple[Message, Message]:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    return (
        {"type": "http.response.start", "status": reply.status, "headers": headers},
        {"type": "http.response.body", "body": reply.body},
    )


Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

NAMES = {name.encode(): name for name in LOOKED_AT}


class IdempotencyKey:
    """`api.add_middleware(IdempotencyKey, app=app)`, or around any ASGI app: `IdempotencyKey(inner, app=app)`."""

    def __init__(
        self,
        inner: AsgiApp,
        /,
        *,
        app: RequestLedger,
        routes: Iterable[Route | str] | None = None,
        principal: Callable[[Scope], Who] | None = None,
        anonymous: str | None = None,
        secret: str | bytes = b"",
    ) -> None:
        self._inner = inner
        self._door = IdempotencyGuard(app, routes=routes, anonymous=anonymous, secret=secret)
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

    async def _visit(self, visit: KeyedRequest, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
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
