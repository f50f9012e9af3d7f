"""A client of the server without a network: the same application, the same routes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from twiceproof import App
from twiceproof.server.app import make_application
from twiceproof.server.tokens import GRANTS, Principal


class Response:
    """An answer. `response.json` is its body; `response["field"]` is one field of it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()

    def __getitem__(self, field: str) -> Any:
        return self.json[field]


class Client:
    """`client("PUT", path, {...})`. `by` is the name of the caller's token; "" is nobody's."""

    def __init__(self, app: App, by: str = "", tenant: str | None = None) -> None:
        self.app = app
        self._application = make_application(app)
        whose = app.settings.tenant if tenant is None else tenant

        async def principal(headers: Any, scope: Any, via: Any) -> Principal:
            return Principal(by, frozenset(GRANTS), whose)

        self._application.access.principal = principal

    def __call__(self, method: str, path: str, value: Any = None, status: int = 0, **headers: str) -> Response:
        body = value if isinstance(value, bytes) else b"" if value is None else msgspec.json.encode(value)
        if body:
            headers.setdefault("content_type", "application/json")
        response = asyncio.run(self._send(method, path, body, headers))
        assert not status or response.status == status, (response.status, response.body)
        return response

    async def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Response:
        path, _, query = path.partition("?")
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost"), *named],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._application(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Response(sent[0]["status"], found, b"".join(part.get("body", b"") for part in sent[1:]))
