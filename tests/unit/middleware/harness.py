"""One shop behind both middlewares: the same requests over plain ASGI and plain WSGI."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from twiceproof.middleware import IdempotencyKey, WsgiIdempotencyKey

JSON = ("content-type", "application/json")


@dataclass
class Response:
    """A response as the client receives it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for known, value in self.headers if known.lower() == name]
        return ", ".join(found) if found else None

    @property
    def replayed(self) -> bool:
        return self.header("idempotent-replayed") == "true"

    def problem(self) -> dict[str, Any]:
        assert self.header("content-type") == "application/problem+json", self
        return json.loads(self.body)


@dataclass
class AppRequest:
    """A request as the app receives it."""

    method: str
    path: str
    body: bytes
    carrier: Any
    count: int


Answer = tuple[int, list[tuple[str, str]], Iterable[bytes]]


@dataclass
class Shop:
    """The app: `answer` says what it does. It records its requests."""

    answer: Callable[[AppRequest], Answer] = lambda asked: (201, [JSON], [b'{"count": %d}' % asked.count])
    asked: list[AppRequest] = field(default_factory=list)
    on_end: Callable[[], object] = lambda: None  # after the answer, as background tasks are

    @property
    def count(self) -> int:
        return len(self.asked)

    def _ask(self, method: str, path: str, body: bytes, carrier: Any) -> Answer:
        asked = AppRequest(method, path, body, carrier, self.count + 1)
        self.asked.append(asked)
        return self.answer(asked)

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, headers, chunks = self._ask(scope["method"], scope["path"], body, scope)
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        if isinstance(chunks, list) and len(chunks) == 1:
            await send({"type": "http.response.body", "body": chunks[0]})
        else:
            for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        self.on_end()

    def wsgi(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, headers, chunks = self._ask(environ["REQUEST_METHOD"], environ["PATH_INFO"], body, environ)
        start_response(f"{status} Whatever", headers)
        return ClosingList(chunks, self.on_end) if isinstance(chunks, list) else Closing(chunks, self.on_end)


class ClosingList(list):
    def __init__(self, chunks: list[bytes], on_end: Callable[[], object]) -> None:
        super().__init__(chunks)
        self.close = on_end


class Closing:
    def __init__(self, chunks: Iterable[bytes], on_end: Callable[[], object]) -> None:
        self.chunks, self.close = chunks, on_end

    def __iter__(self):
        return iter(self.chunks)


class Client:
    """Sends requests through one kind of middleware."""

    def __init__(self, kind: str, shop: Shop, **options: Any) -> None:
        self.kind = kind
        self.shop = shop
        self.middleware: Any = (
            IdempotencyKey(shop.asgi, **options) if kind == "asgi" else WsgiIdempotencyKey(shop.wsgi, **options)
        )

    def ask(
        self,
        body: bytes = b"{}",
        *,
        key: str | None = "k-1",
        who: str | None = "Bearer ann",
        method: str = "POST",
        path: str = "/pay",
        query: str = "",
        headers: Iterable[tuple[str, str]] = (),
        listener: Any = None,
    ) -> Response:
        sent = [("content-type", "application/json"), ("content-length", str(len(body)))]
        given = {name for name, _ in headers}
        sent = [pair for pair in sent if pair[0] not in given] + list(headers)
        sent += [("idempotency-key", key)] if key is not None else []
        sent += [("authorization", who)] if who is not None else []
        if self.kind == "asgi":
            return asyncio.run(self.ask_asgi(method, path, query, sent, [body], listener))
        return self.ask_wsgi(method, path, query, sent, body, listener)

    async def ask_asgi(
        self, method: str, path: str, query: str, sent: list[tuple[str, str]], chunks: list[bytes], listener: Any = None
    ) -> Response:
        response = Response(0, [], b"")
        waiting = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        waiting[-1]["more_body"] = False

        async def receive() -> Any:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if listener is not None:
                listener(message.get("body"))
            if message["type"] == "http.response.start":
                assert response.status == 0
                response.status = message["status"]
                response.headers = [(name.decode(), value.decode("latin-1")) for name, value in message["headers"]]
            else:
                response.body += message.get("body", b"")

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent],
        }
        await self.middleware(scope, receive, send)
        return response

    def ask_wsgi(
        self, method: str, path: str, query: str, sent: list[tuple[str, str]], body: bytes, listener: Any = None
    ) -> Response:
        response = Response(0, [], b"")
        environ = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "wsgi.version": (1, 0),
            "wsgi.input": io.BytesIO(body),
            "wsgi.url_scheme": "http",
            "SERVER_NAME": "shop",
            "SERVER_PORT": "80",
        }
        for name, value in sent:
            variable = name.upper().replace("-", "_")
            variable = variable if variable in ("CONTENT_TYPE", "CONTENT_LENGTH") else "HTTP_" + variable
            environ[variable] = f"{environ[variable]},{value}" if variable in environ else value

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            response.status, response.headers = int(status[:3]), headers

        answer = self.middleware(environ, start_response)
        try:
            for chunk in answer:
                assert response.status, "a body before its status"
                if listener is not None:
                    listener(chunk)
                response.body += chunk
        except OSError:  # what a server does when its client has hung up
            pass
        finally:
            if hasattr(answer, "close"):
                answer.close()
        return response
