"""A route: one method at one address, what it takes and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from ..app import App
from ..doors.reply import JSON, Reply
from .call import Call

__all__ = ["ANY", "LARGEST", "Answer", "Handle", "Route"]

Handle = Callable[[Call], Awaitable[Reply]]

LARGEST = 1024 * 1024  # bytes
ANY = "*/*"


class Answer(Struct, frozen=True):
    """One status a route may answer with. `type` is what msgspec writes, or a tuple: one of these; None has no body, or
    one of no JSON type.
    """

    about: str
    type: Any = None
    media: str = JSON
    headers: Mapping[str, str] = MappingProxyType({})  # name: what it says


class Route(Struct, frozen=True):
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
    answers: Mapping[int, Answer] = MappingProxyType({})
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
