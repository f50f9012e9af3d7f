"""Finds the route of an address: literal segments before parameters, each parameter one segment, decoded once."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from ..errors import Misuse
from .route import Route

__all__ = ["Node", "Router", "params_of"]


class Node:
    """One segment of an address. `routes` end here, by method."""

    def __init__(self) -> None:
        self.literals: dict[str, Node] = {}
        self.any: Node | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """A tree of segments. A literal is taken where there is one; no way leads back from it."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                node.any = node.any or Node()
                node = node.any
            else:
                node = node.literals.setdefault(segment, Node())
        if route.method in node.routes:
            raise Misuse(f"{route.method} {route.path} is declared twice; remove one of them.")
        node.routes[route.method] = route

    def find(self, raw_path: str) -> tuple[Node, list[str]] | None:
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


def params_of(route: Route, values: list[str]) -> dict[str, str] | None:
    """None: one of them is not UTF-8."""
    names = [segment[1:-1] for segment in route.path.split("/") if segment.startswith("{")] if values else ()
    try:
        decoded = [unquote_to_bytes(value).decode() if "%" in value else value for value in values]
    except UnicodeDecodeError:
        return None
    return dict(zip(names, decoded, strict=True))
