"""Route, Router, query parameters."""

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
    """One status a route may answer with. `type` is what msgspec writes, or a tuple: one of these; None has no body, or
    one of no JSON type.
    """

    about: str
    type: Any = None
    media: str = JSON
    headers: Mapping[str, str] = MappingProxyType({})  # name: what it says


class ApiRoute(Struct, frozen=True):
    """`path` has parameters in braces: each is one segment. `handle` is given the body whole, within `largest`.

    Everything below `handle` is what /openapi.json tells; 4xx and 5xx that any route may answer need no mention.
    """

    method: str
    path: str
    name: str  # stable: an operation's name in clients made from /openapi.json, and a label in /metrics
    handle: Handle
    summary: str = ""
    body: Any = None  # the type that `body_of` is given; None: no body, or one that is not looked into
    query: Any = None  # the type that `call.ask` is given: each field is a parameter, and there are no others
    tolerant: bool = False  # of other parameters: whoever is given the address adds some, and they mean nothing
    media: str = JSON  # of the body
    answers: Mapping[int, RouteAnswer] = MappingProxyType({})
    params: Mapping[str, str] = MappingProxyType({})  # name: what it says
    shapes: Mapping[str, Mapping[str, Any]] = MappingProxyType({})  # name: how it is written, where not anyhow
    headers: Mapping[str, str] = MappingProxyType({})  # that the route looks at; name: what it says
    largest: int = LARGEST
    room: Callable[[App, Mapping[str, str]], int] | None = None  # instead of `largest`, where it depends
    signs_on: Callable[[App, Mapping[str, str]], bool] | None = None  # whether Authorization holds no token of ours
    handed_out: bool = False  # the address is the proof: Authorization may be a proxy's, or the sender's own
    tag: str = ""

    @property
    def is_looked_into(self) -> bool:
        """Whether a body is JSON here, or refused. What may be anything is read by whoever knows its sender."""
        return self.media != ANY


def parameters_of(route: ApiRoute) -> list[str]:
    return [] if route.query is None else [field.encode_name for field in fields(route.query)]


def require_known(call: ApiRequest, route: ApiRoute) -> None:
    """A slip (`?alway200=true`, `?stat=failed`) would be answered as if nothing had been asked for."""
    if route.tolerant or not call.raw_query:
        return
    known = parameters_of(route)
    strange = next((name for name in call.query if name not in known), None)
    if strange is None:
        return
    move = f"It takes: {', '.join(known)}." if known else "Leave the query out: it takes none."
    raise RequestRefused(problem(400, "bad-query", f"There is no parameter {strange!r:.80} here.", next_move=move))


class RouteNode:
    """One segment of an address. `routes` end here, by method."""

    def __init__(self) -> None:
        self.literals: dict[str, RouteNode] = {}
        self.any: RouteNode | None = None
        self.routes: dict[str, ApiRoute] = {}


class Router:
    """A tree of segments. A literal is taken where there is one; no way leads back from it."""

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
        """Where the address ends, and the segments that stand for parameters. None: there is no such address."""
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
    """None: one of them is not UTF-8."""
    names = [segment[1:-1] for segment in route.path.split("/") if segment.startswith("{")] if values else ()
    try:
        decoded = [unquote_to_bytes(value).decode() if "%" in value else value for value in values]
    except UnicodeDecodeError:
        return None
    return dict(zip(names, decoded, strict=True))
