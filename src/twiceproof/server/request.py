"""ApiRequest: what a route sees; response headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from ..app.app import App
from ..inbound.envelope import Envelope
from ..inbound.reply import Reply, problem
from .tokens import Principal

if TYPE_CHECKING:
    from .monitoring import ServerStatus

__all__ = ["SECURITY", "ApiRequest", "RequestRefused", "headers_of", "raw", "split_root_path"]


T = TypeVar("T")


class RequestRefused(Exception):
    """A route's way out of the middle of a function: the answer is `reply`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class ApiRequest:
    """`app` is the view of the caller's tenant: what is done with it cannot touch another's."""

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
        station: ServerStatus | None = None,
    ) -> None:
        self.app = app
        self.principal = principal
        self.method = method
        self.root = root  # under which the application is mounted
        self.path = path  # below that, as it was sent, still percent-encoded
        self.params = params  # of the path, percent-decoded once
        self.body = body
        self.raw_query = raw_query
        self.raw_headers = raw_headers
        self.client = client  # the address it came from
        self.scheme = scheme
        self.now = now
        self._station = station
        self._headers: dict[str, str] | None = None

    @property
    def station(self) -> ServerStatus:
        """The server itself: for operators' routes."""
        if self._station is None:
            raise RuntimeError("a call that no server made")
        return self._station

    @property
    def headers(self) -> dict[str, str]:
        """Names in lower case; a name that came twice keeps its values, joined as HTTP joins them."""
        if self._headers is not None:
            return self._headers
        joined = self._headers = {}
        for raw_name, raw_value in self.raw_headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
        return joined

    @cached_property
    def query(self) -> dict[str, str]:
        """A name that is given twice is refused: two readers would read two things."""
        try:
            pairs = parse_qsl(self.raw_query, keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError as error:
            raise RequestRefused(_bad_query(f"The query cannot be read: {error}.")) from None
        found = dict(pairs)
        if len(found) != len(pairs):
            raise RequestRefused(_bad_query("A parameter of the query is given twice."))
        return found

    @property
    def url(self) -> str:
        """As the sender called it: under the app's own public address, where it has one."""
        above = self.app.settings.url.rstrip("/") or f"{self.scheme}://{self.headers.get('host', '')}{self.root}"
        return f"{above}{self.path}{'?' if self.raw_query else ''}{self.raw_query}"

    def ask(self, kind: type[T]) -> T:
        """The query as this type: numbers and flags are read from their text."""
        try:
            return msgspec.convert(self.query, kind, strict=False)
        except msgspec.ValidationError as error:
            raise RequestRefused(_bad_query(str(error))) from None

    def envelope(self, source: str) -> Envelope:
        """What a door takes in."""
        return Envelope(
            source, self.body, self.headers, self.app.settings.tenant, self.now, self.method, self.url, self.raw_query
        )

    def __repr__(self) -> str:
        """Without contents: paths and queries hold secrets."""
        return f"Call({self.method}, {len(self.body)} bytes, tenant={self.principal.tenant!r})"


def _bad_query(detail: str) -> Reply:
    return problem(400, "bad-query", detail, next_move="See /openapi.json for what this route takes.")


UNTOUCHED = "/:@!$&'()*+,;=~-._"


def split_root_path(scope: Mapping[str, Any]) -> tuple[str, str]:
    """Both still percent-encoded. A server that leaves the first part out of its paths is believed, too."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw is not None else quote(scope["path"], safe=UNTOUCHED)
    root = scope.get("root_path", "").rstrip("/")
    if not root:
        return "", path
    segments, count = path.split("/"), root.count("/") + 1
    if len(segments) <= count or unquote("/".join(segments[:count])) != root:
        return quote(root, safe=UNTOUCHED), path
    return "/".join(segments[:count]), "/" + "/".join(segments[count:])


# Nothing we answer is a page of anybody else's, to be guessed about, framed, cached or told on.
SECURITY: tuple[tuple[str, str], ...] = (
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-resource-policy", "same-origin"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
)
ENCODED = {name.encode(): value.encode() for name, value in SECURITY}


def headers_of(reply: Reply, root: str = "") -> list[tuple[bytes, bytes]]:
    """What a route says goes before what every answer says. Routes do not know where they are mounted (`root`)."""
    own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    if root:
        own = [(name, root.encode("latin-1") + value if name == b"location" else value) for name, value in own]
    named = {name for name, _ in own}
    own += [pair for pair in ENCODED.items() if pair[0] not in named]
    own.append((b"content-length", b"%d" % len(reply.body)))
    return own


def raw(reply: Reply) -> bytes:
    """For a caller that never came to be a request. The connection ends with it."""
    head = b"HTTP/1.1 %d %s\r\n" % (reply.status, HTTPStatus(reply.status).phrase.encode())
    lines = b"".join(b"%s: %s\r\n" % pair for pair in [*headers_of(reply), (b"connection", b"close")])
    return head + lines + b"\r\n" + reply.body
