"""A request as routes see it, with its body and query decoded, and the headers of responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import msgspec
from msgspec import Raw

from ..app.app import App
from ..claims.states import is_expired
from ..errors import Misuse
from ..flows.runtime import own_run
from ..inbound.reply import Reply, Unreadable, problem, read_body, read_json
from ..inbound.source import Envelope
from ..operations import Operation
from ..records import Address
from .tokens import Principal

__all__ = [
    "SECURITY",
    "ApiRequest",
    "RequestRefused",
    "StatusView",
    "StreamReply",
    "headers_of",
    "raw",
    "split_root_path",
]


T = TypeVar("T")


class RequestRefused(Exception):
    """Raised to end a request; answered with `reply`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class StatusView(Protocol):
    """The part of the server's status that the health routes show."""

    draining: bool

    @property
    def description(self) -> bytes: ...

    async def is_ready(self) -> bool: ...

    async def text(self) -> bytes: ...


class ApiRequest:
    """A request to a route. `app` is the view of the caller's tenant, and cannot reach another tenant's data."""

    def __init__(
        self,
        app: App,
        principal: Principal,
        *,
        method: str,
        path: str,
        params: Mapping[str, str],
        raw_headers: Sequence[tuple[bytes, bytes]],
        body: bytes = b"",
        raw_query: str = "",
        client: str = "",
        scheme: str = "http",
        root: str = "",
        now: float = 0.0,
        server_status: StatusView | None = None,
    ) -> None:
        self.app = app
        self.principal = principal
        self.method = method
        self.root = root  # the path under which the application is mounted
        self.path = path  # below that, as sent, still percent-encoded
        self.params = params  # path parameters, percent-decoded once
        self.body = body
        self.raw_query = raw_query
        self.raw_headers = raw_headers
        self.client = client  # the client's address
        self.scheme = scheme
        self.now = now
        self._server_status = server_status
        self._headers: dict[str, str] | None = None

    @property
    def server_status(self) -> StatusView:
        """The status of the server, for the health routes."""
        if self._server_status is None:
            raise RuntimeError("this request was not made by a server")
        return self._server_status

    @property
    def headers(self) -> dict[str, str]:
        """Headers with lower-case names; values of a repeated header are joined by ", "."""
        if self._headers is not None:
            return self._headers
        joined = self._headers = {}
        for raw_name, raw_value in self.raw_headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
        return joined

    @cached_property
    def query(self) -> dict[str, str]:
        """The query parameters. A repeated one is refused, because parsers disagree about which one counts."""
        try:
            pairs = parse_qsl(self.raw_query, keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError as error:
            raise RequestRefused(_bad_query(f"The query cannot be read: {error}.")) from None
        found = dict(pairs)
        if len(found) != len(pairs):
            raise RequestRefused(_bad_query("A query parameter is repeated."))
        return found

    @property
    def url(self) -> str:
        """The URL as the sender called it: under the app's public URL, if it has one."""
        above = self.app.settings.url.rstrip("/") or f"{self.scheme}://{self.headers.get('host', '')}{self.root}"
        return f"{above}{self.path}{'?' if self.raw_query else ''}{self.raw_query}"

    def query_as(self, kind: type[T]) -> T:
        """Decode the query as this type, converting numbers and flags from text."""
        try:
            return msgspec.convert(self.query, kind, strict=False)
        except msgspec.ValidationError as error:
            raise RequestRefused(_bad_query(str(error))) from None

    def body_as(self, kind: type[T]) -> T:
        """Decode the JSON body as this type, or refuse the request."""
        try:
            return read_body(kind, self.body, self.headers.get("content-type", ""))
        except Unreadable as error:
            raise RequestRefused(error.reply) from None

    def json_body(self) -> Raw:
        """Return the JSON body as it was written, or refuse the request."""
        try:
            return read_json(self.body, self.headers.get("content-type", ""))
        except Unreadable as error:
            raise RequestRefused(error.reply) from None

    def named_address(self) -> Operation[Address]:
        """The address of the run named in the path, whether it exists or not; a claim of this id is in the same space.

        A run of another tenant is refused like one that does not exist.
        """
        try:
            return (yield from own_run(self.app.store, self.app.settings.tenant, self.params["name"]))
        except Misuse:
            raise _no_such_run() from None

    def existing_run(self) -> Operation[Address]:
        """The address of the run named in the path, which must exist."""
        at = yield from self.named_address()
        found = yield from self.app.store.read(at)
        if found.record is None or is_expired(found.record, found.now):
            raise _no_such_run()
        return at

    def envelope(self, source: str) -> Envelope:
        """Return the request as an envelope for a webhook source."""
        return Envelope(
            source, self.body, self.headers, self.app.settings.tenant, self.now, self.method, self.url, self.raw_query
        )

    def __repr__(self) -> str:
        """Show no contents: paths and queries contain secrets."""
        return f"ApiRequest({self.method}, {len(self.body)} bytes, tenant={self.principal.tenant!r})"


def _no_such_run() -> RequestRefused:
    return RequestRefused(problem(404, "no-such-run", "There is no such run.", next_move="List them: GET /v1/runs"))


def _bad_query(detail: str) -> Reply:
    return problem(400, "bad-query", detail, next_move="See /openapi.json for the parameters of this route.")


UNQUOTED = "/:@!$&'()*+,;=~-._"


def split_root_path(scope: Mapping[str, Any]) -> tuple[str, str]:
    """Split the path into mount point and rest, still percent-encoded. Some servers leave the mount point out."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw is not None else quote(scope["path"], safe=UNQUOTED)
    root = scope.get("root_path", "").rstrip("/")
    if not root:
        return "", path
    segments, count = path.split("/"), root.count("/") + 1
    if len(segments) <= count or unquote("/".join(segments[:count])) != root:
        return quote(root, safe=UNQUOTED), path
    return "/".join(segments[:count]), "/" + "/".join(segments[count:])


# Sent with every response: no MIME sniffing, caching, referrers, framing, or use by other origins.
SECURITY: tuple[tuple[str, str], ...] = (
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-resource-policy", "same-origin"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
)


class StreamReply(Reply, frozen=True):
    """A reply whose body comes in pieces. `pieces` is called with a future that is done once the client is gone."""

    pieces: Callable[[asyncio.Future[None]], AsyncIterator[bytes]] | None = None


ENCODED = {name.encode(): value.encode() for name, value in SECURITY}


def headers_of(reply: Reply, root: str = "") -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply: a route's own take precedence over the defaults; `root` is added to `location`."""
    own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    if root:
        own = [(name, root.encode("latin-1") + value if name == b"location" else value) for name, value in own]
    named = {name for name, _ in own}
    own += [pair for pair in ENCODED.items() if pair[0] not in named]
    if not isinstance(reply, StreamReply):
        own.append((b"content-length", b"%d" % len(reply.body)))
    return own


def raw(reply: Reply) -> bytes:
    """Encode a reply to something that never became a request. It closes the connection."""
    head = b"HTTP/1.1 %d %s\r\n" % (reply.status, HTTPStatus(reply.status).phrase.encode())
    lines = b"".join(b"%s: %s\r\n" % pair for pair in [*headers_of(reply), (b"connection", b"close")])
    return head + lines + b"\r\n" + reply.body
