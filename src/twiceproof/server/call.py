"""The call: one request, as a route sees it. Its body has been read under the limits; nothing of it is believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl

import msgspec

from ..app import App
from ..doors.envelope import Envelope
from ..doors.reply import Reply, problem
from .principal import Principal

if TYPE_CHECKING:
    from .station import Station

__all__ = ["Call", "Refused"]

T = TypeVar("T")


class Refused(Exception):
    """A route's way out of the middle of a function: the answer is `reply`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Call:
    """`app` is the view of the caller's tenant: what is done with it cannot touch another's."""

    def __init__(
        self, app: App, principal: Principal, *, method: str, path: str, params: Mapping[str, str],
        raw_headers: Sequence[tuple[bytes, bytes]], body: bytes = b"", raw_query: str = "", client: str = "",
        scheme: str = "http", root: str = "", now: float = 0.0, station: Station | None = None,
    ) -> None:  # fmt: skip
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
    def station(self) -> Station:
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
            raise Refused(_bad_query(f"The query cannot be read: {error}.")) from None
        found = dict(pairs)
        if len(found) != len(pairs):
            raise Refused(_bad_query("A parameter of the query is given twice."))
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
            raise Refused(_bad_query(str(error))) from None

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
