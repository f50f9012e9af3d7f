"""The ASGI middleware: reads a request, runs the app under a claim, and records its response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ..inbound.reply import Reply
from ..operations import await_
from . import problems
from .guard import IdempotencyGuard, IdempotencyMiddleware
from .responses import STATE_KEY, AnswerCutShort, AnswerOvertaken, Recording
from .routes import USED_HEADERS, HeldRequest, KeyedRequest, marker_headers

__all__ = ["AsgiExchange", "IdempotencyKey"]


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# With these extensions, bytes would reach the client without being recorded.
UNRECORDED = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})


class AsgiExchange:
    """One request under a claim. It runs to its end even if the client disconnects, because the client will retry."""

    def __init__(
        self,
        guard: IdempotencyGuard,
        held: HeldRequest,
        body: bytes,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        self._guard = guard
        self._held = held
        self._body: bytes | None = body
        self._scope = scope
        self._outer_receive = receive
        self._outer_send = send
        self._recording = Recording(held.request.rule.route.largest_answer)
        self._start: Message | None = None  # delayed until the first part of the body
        self._started = False
        self._disconnected = False
        self._ended = False
        self._may_disconnect = asyncio.Event()  # set when the app may be told that the client disconnected

    async def run(self, inner: Callable[..., Awaitable[None]]) -> None:
        scope = self._scope
        if not UNRECORDED.isdisjoint(scope.get("extensions") or ()):
            recorded = {name: value for name, value in scope["extensions"].items() if name not in UNRECORDED}
            self._scope = scope = {**scope, "extensions": recorded}
        scope[STATE_KEY] = self._held
        try:
            await inner(scope, self._receive, self._send)
        except GeneratorExit:  # the coroutine was discarded, and cannot await any more
            self._guard.abandon(self._held)
            raise
        except BaseException as error:
            if not self._held.recorded:
                await await_(self._guard.record_failure(self._held, error))
            raise
        finally:
            self._end()
        if not self._held.recorded:
            await await_(self._guard.record_failure(self._held, AnswerCutShort("the response was never finished")))

    async def _receive(self) -> Message:
        """Return the body once. A disconnect is withheld, because it would cancel the work halfway."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._may_disconnect.wait()
        return {"type": "http.disconnect"} if self._ended else await self._outer_receive()

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._begin(message)
        elif kind == "http.response.body" and not self._held.recorded:
            await self._record_chunk(message)
        else:
            await self._forward(message)

    def _begin(self, message: Message) -> None:
        headers = list(message.get("headers", ()))
        self._recording.start(message["status"], [(n.decode("latin-1"), v.decode("latin-1")) for n, v in headers])
        marked = [(n.encode(), v.encode("latin-1")) for n, v in marker_headers(self._held.request, replayed=False)]
        self._start = {**message, "headers": [*headers, *marked]}

    async def _record_chunk(self, message: Message) -> None:
        self._recording.add(message.get("body", b""))
        if message.get("more_body", False) and not self._recording.is_complete:
            await self._forward(message)
            self._stop_if_over_limit()
            return
        # A client that has the complete response may rely on it, so it is recorded before its end is sent.
        instead = await await_(self._guard.record_answer(self._held, self._recording, self._scope))
        if isinstance(instead, Reply) and not self._started:
            self._start, message = response_messages(instead)
            await self._forward(message)
            self._disconnected = True  # the rest of the app's response is discarded
        elif isinstance(instead, Reply):
            self._disconnected = True  # without its end, the client cannot mistake it for complete
            raise AnswerOvertaken
        else:
            await self._forward(message)
        if not message.get("more_body", False):
            self._end()

    def _stop_if_over_limit(self) -> None:
        """Tell an endless stream that the client has disconnected, or it would run for ever."""
        if self._recording.is_over_limit:
            self._may_disconnect.set()
            if self._disconnected:
                raise OSError("the client disconnected, and the response is larger than the limit for storing it")

    def _end(self) -> None:
        self._ended = True
        self._may_disconnect.set()

    async def _forward(self, message: Message) -> None:
        if self._disconnected:
            return
        try:
            if self._start is not None:
                start, self._start, self._started = self._start, None, True
                await self._outer_send(start)
            await self._outer_send(message)
        except OSError:  # the client disconnected; the record is for its retry
            self._disconnected = True


def response_messages(reply: Reply) -> tuple[Message, Message]:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    return (
        {"type": "http.response.start", "status": reply.status, "headers": headers},
        {"type": "http.response.body", "body": reply.body},
    )


Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

NAMES = {name.encode(): name for name in USED_HEADERS}


class IdempotencyKey(IdempotencyMiddleware[AsgiApp, Scope]):
    """`api.add_middleware(IdempotencyKey, app=app)`, or around any ASGI app: `IdempotencyKey(inner, app=app)`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._inner(scope, receive, send)
        method = scope[
            "method"
        ].upper()  # some servers pass it on as it was sent, and frameworks accept `patch` for PATCH
        rule, path = self._guard.find_rule(method, scope["path"], scope.get("root_path", ""))
        if rule is None:
            return await self._inner(scope, receive, send)
        headers, length = _used_headers(scope["headers"])
        query = scope.get("query_string", b"").decode("latin-1")
        request = self._guard.reader.read(rule, method, path, query, headers, lambda: self._caller(scope, headers))
        if request is None:
            return await self._inner(scope, receive, send)
        if isinstance(request, Reply):
            return await _send(send, request)
        body = await _read(receive, length, rule.route.largest_body)
        if isinstance(body, bytes):
            return await self._run(request, body, scope, receive, send)
        return None if body is None else await _send(send, body)

    async def _run(self, request: KeyedRequest, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        entered = await await_(self._guard.enter(request, body))
        if isinstance(entered, Reply):
            await _send(send, entered)
        elif entered is None:
            await self._inner(scope, _replay_body(body, receive), send)
        else:
            await AsgiExchange(self._guard, entered, body, scope, receive, send).run(self._inner)


def _used_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, str], int]:
    """Return the headers that the guard uses, and the announced length. Repeated headers are joined by ", "."""
    used: dict[str, str] = {}
    length = -1
    for name, value in headers:
        known = NAMES.get(name)
        if known is not None:
            text = value.decode("latin-1")
            used[known] = f"{used[known]}, {text}" if known in used else text
        elif name == b"content-length" and value.isdigit():
            length = int(value)
    return used, length


async def _read(receive: Receive, length: int, most: int) -> bytes | Reply | None:
    """Return the whole body, or why it is refused. None: the client disconnected before it was complete."""
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


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that yields a body that was read already, then continues with the original."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def _send(send: Send, reply: Reply) -> None:
    for message in response_messages(reply):
        await send(message)
