"""Routes, the router, and the check of query parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote_to_bytes

from msgspec import Struct
from msgspec.structs import fields

from ..app.app import App
from ..errors import Misuse
from ..inbound.reply import JSON, Reply, problem
from .request import ApiRequest, RequestRefused
from .tokens import Scope

__all__ = [
    "ANY",
    "LARGEST",
    "ApiRoute",
    "Handle",
    "RouteAnswer",
    "RouteNode",
    "Router",
    "parameters_of",
    "params_of",
    "require_known",
]


Handle = Callable[[ApiRequest], Awaitable[Reply]]

LARGEST = 1024 * 1024  # bytes
ANY = "*/*"


class RouteAnswer(Struct, frozen=True):
    """A status that a route may respond with. `type` is the type of the body, a tuple for alternatives, or None for no
    body or one that is not JSON.
    """

    about: str
    type: Any = None
    media: str = JSON
    headers: Mapping[str, str] = MappingProxyType({})  # name: description


class ApiRoute(Struct, frozen=True):
    """One route. Parameters of `path` are in braces, each one segment. The body has at most `largest` bytes.

    The fields below `handle` appear in /openapi.json, where responses common to all routes are added.
    """

    method: str
    path: str
    name: str  # stable: the operation id in /openapi.json and a label in /metrics
    handle: Handle
    summary: str = ""
    body: Any = None  # the type for `body_as`; None: no body, or one that is not decoded
    query: Any = None  # the type for `query_as`: each field is a parameter, and no others are accepted
    ignores_unknown_query: bool = False  # other parameters are ignored, because senders add their own
    media: str = JSON  # of the body
    answers: Mapping[int, RouteAnswer] = MappingProxyType({})
    params: Mapping[str, str] = MappingProxyType({})  # name: description
    schemas: Mapping[str, Mapping[str, Any]] = MappingProxyType({})  # name: schema, if not any text
    headers: Mapping[str, str] = MappingProxyType({})  # that the route reads; name: description
    largest: int = LARGEST
    largest_for: Callable[[App, Mapping[str, str]], int] | None = (
        None  # instead of `largest`, if it depends on the request
    )
    foreign_authorization: Callable[[App, Mapping[str, str]], bool] | None = (
        None  # whether Authorization carries the sender's own secret
    )
    secret_path: bool = False  # the URL is the proof; Authorization may belong to a proxy or to the sender
    tag: str = ""
    page: bool = False  # of the dashboard: the caller is known by its session, and problems are shown as pages
    scope: Scope | None = None  # what it requires; None: as the access policy says

    @property
    def is_json(self) -> bool:
        """Whether only JSON bodies are accepted. Webhook bodies are read by their source."""
        return self.media != ANY


def parameters_of(route: ApiRoute) -> list[str]:
    return [] if route.query is None else [field.encode_name for field in fields(route.query)]


def require_known(call: ApiRequest, route: ApiRoute) -> None:
    """Refuse unknown query parameters: a typo (`?alway200=true`) would otherwise be ignored silently."""
    if route.ignores_unknown_query or not call.raw_query:
        return
    known = parameters_of(route)
    unknown = next((name for name in call.query if name not in known), None)
    if unknown is None:
        return
    move = f"Use: {', '.join(known)}." if known else "Leave the query out: this route takes none."
    raise RequestRefused(problem(400, "bad-query", f"There is no parameter {unknown!r:.80}.", next_move=move))


class RouteNode:
    """One segment of a path. `routes` are those that end here, by method."""

    def __init__(self) -> None:
        self.literals: dict[str, RouteNode] = {}
        self.any: RouteNode | None = None
        self.routes: dict[str, ApiRoute] = {}


class Router:
    """A tree of path segments. A literal takes precedence over a parameter, without backtracking."""

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        self._root = RouteNode()
        for route in routes:
            self._add(route)

    def _add(self, route: ApiRoute) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                node.any = node.any or RouteNode()
                node = node.any
            else:
                node = node.literals.setdefault(segment, RouteNode())
        if route.method in node.routes:
            raise Misuse(f"{route.method} {route.path} is declared twice; remove one of them.")
        node.routes[route.method] = route

    def find(self, raw_path: str) -> tuple[RouteNode, list[str]] | None:
        """Return the node of a path and its parameter segments, or None."""
        node, values = self._root, []
        for segment in raw_path.split("/")[1:]:
            literal = node.literals.get(segment)
            if literal is not None:
                node = literal
            elif node.any is not None and segment:
                node = node.any
                values.append(segment)
            else:
                return None
        return (node, values) if node.routes else None


def params_of(route: ApiRoute, values: list[str]) -> dict[str, str] | None:
    """Decode path parameters; None if one is not UTF-8."""
    names = [segment[1:-1] for segment in route.path.split("/") if segment.startswith("{")] if values else ()
    try:
        decoded = [unquote_to_bytes(value).decode() if "%" in value else value for value in values]
    except UnicodeDecodeError:
        return None
    return dict(zip(names, decoded, strict=True))
