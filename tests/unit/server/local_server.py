"""A server without a socket: requests go straight to the application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from twiceproof import App
from twiceproof.inbound.source import Event, Source
from twiceproof.operations import block
from twiceproof.server.app import Application, make_application
from twiceproof.server.tokens import Scope, create_token

HERE = ("host", "127.0.0.1:8321")


class Shop(Source):
    """Believes whoever knows the secret."""

    name = "shop"
    largest = 2_000

    def verify(self, envelope, secrets, now):
        return "" if envelope.header("x-secret") in secrets else "wrong secret"

    def read(self, envelope):
        order = json.loads(envelope.body)
        return [Event(order["id"], order)]


class Answer:
    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = {name.decode(): value.decode() for name, value in headers}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """Of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self.headers
        assert self.json["status"] == self.status
        assert self.json["next"]
        return self.json["type"].removeprefix("urn:twiceproof:")


class LocalServer:
    def __init__(self, app: App, **options: Any) -> None:
        self.app = app
        self.application: Application = make_application(app, **options)

    def token(self, *scopes: Scope, tenant: str = "default", name: str = "tester", lasts: float | None = None) -> str:
        return block(create_token(self.app.store, name, tenant, scopes, lasts))[0]

    def call(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        headers: Iterable[tuple[str, str]] = (),
        *,
        token: str = "",
        host: tuple[str, str] | None = HERE,
        client: str = "127.0.0.1",
        version: str = "1.1",
    ) -> Answer:
        given = [*headers, *([host] if host else []), *([("authorization", f"Bearer {token}")] if token else [])]
        return asyncio.run(self._call(method, path, body, given, client, version))

    async def _call(self, method, path, body, headers, client, version):
        raw_path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": version,
            "method": method,
            "path": raw_path,
            "raw_path": raw_path.encode("latin-1"),
            "query_string": query.encode(),
            "client": (client, 50_000),
            "scheme": "http",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        }
        pieces = iter([body] if isinstance(body, bytes) else body)
        whole = isinstance(body, bytes)
        sent: list[dict[str, Any]] = []

        async def receive():
            piece = next(pieces, None)  # asked for one by one, as from a socket
            return {"type": "http.request", "body": piece or b"", "more_body": not whole and piece is not None}

        async def send(message):
            sent.append(message)

        await self.application(scope, receive, send)
        if not sent:
            return None
        return Answer(sent[0]["status"], sent[0]["headers"], sent[1]["body"])
