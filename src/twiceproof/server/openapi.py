"""Builds /openapi.json from the routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ..keys.duration import LONGEST, UNITS
from ..keys.key import LONGEST_KEY
from ..version import __version__
from .auth import POLICY
from .routing import ApiRoute, RouteAnswer
from .tokens import Scope

__all__ = [
    "KEEP",
    "KEY",
    "KEY_OR_NONE",
    "LEASE",
    "NAME",
    "NAME_OR_NONE",
    "OPERATION",
    "SPAN",
    "SPAN_OR_NONE",
    "UUID_OR_NONE",
    "Problem",
    "Schemas",
    "describe",
    "description",
]


_NAME = "[A-Za-z0-9_.@-]"
_INNER = "[^\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029]"  # no control characters
_EDGE = _INNER.replace("[^", "[^\\s")  # and no blanks at the ends
_KEY = f"{_EDGE}({_INNER}*{_EDGE})?"
# Operations that the server itself uses: see RESERVED in services/claim_service.py.
_RESERVED = r"(?!(hook|start|POST|PATCH|PUT|DELETE)\.)(?!http$)(?!@)(?!.*@(slots|order|letters|schedule|poll)$)"

Shape = dict[str, Any]

NAME: Shape = {"pattern": f"^{_NAME}{{1,128}}$"}
NAME_OR_NONE: Shape = {"pattern": f"^{_NAME}{{0,128}}$"}
OPERATION: Shape = {"type": "string", "pattern": f"^{_RESERVED}{_NAME}{{1,128}}$"}
KEY: Shape = {"type": "string", "pattern": f"^{_KEY}$", "maxLength": LONGEST_KEY}
# Random or time-based, not derived from a name: versions 1, 4, 6 and 7.
UUID_OR_NONE: Shape = {
    "pattern": "^([0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[1467][0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12})?$"
}
KEY_OR_NONE: Shape = {"pattern": f"^({_KEY})?$", "maxLength": LONGEST_KEY}


def _below(number: int) -> str:
    """A pattern for integers below this one: with fewer digits, or smaller at the first digit that differs."""
    digits = str(number)
    less = [
        f"{digits[:place]}[0-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if digit != "0"
    ]
    return "|".join([f"[0-9]{{1,{len(digits) - 1}}}", *less])


_MOST_DIGITS = 10**12 - 1
_WRITTEN = "|".join(
    rf"({_below(min(int(LONGEST / size), _MOST_DIGITS))})(\.[0-9]{{1,9}})? ?{unit}" for unit, size in UNITS.items()
)

SPAN: Shape = {"pattern": f"^({_WRITTEN})$"}
LEASE: Shape = {**SPAN, "not": {"pattern": rf"^[0.]* ?({'|'.join(UNITS)})$"}}
SPAN_OR_NONE: Shape = {**LEASE, "pattern": f"{SPAN['pattern']}|^$"}
KEEP: Shape = {**LEASE, "pattern": f"{SPAN['pattern']}|^forever$"}


PLACE = "#/components/schemas/{name}"


class Schemas:
    """JSON schemas of the types. Classes become shared `components`; other types are written inline."""

    def __init__(self, types: Sequence[Any]) -> None:
        known: dict[str, Any] = {repr(kind): kind for kind in types}
        written, components = msgspec.json.schema_components(known.values(), ref_template=PLACE)
        # Encoded and decoded, because a default of () is not JSON.
        self.components: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(components))
        self._written = dict(zip(known, written, strict=True))

    def of(self, kind: Any) -> dict[str, Any]:
        return self._written[repr(kind)]

    def query_parameters(self, kind: Any) -> list[dict[str, Any]]:
        """Return one query parameter per field of the type."""
        if kind is None:
            return []
        whole = self.components[self.of(kind)["$ref"].rpartition("/")[2]]
        required = whole.get("required", [])
        return [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in whole["properties"].items()
        ]


class Problem(Struct, frozen=True):
    """An RFC 9457 problem, with `next`: what to do about it."""

    type: str
    title: str
    status: int
    detail: str
    next: str


# Responses that any route may send.
ALWAYS = {
    400: "The request cannot be read.",
    404: "There is nothing at this address.",
    429: "The caller has exceeded its rate limit.",
    500: "An internal error.",
    503: "The server is busy or the store is not available: the same request may be sent again.",
}
WITH_BODY = {
    408: "It was sent too slowly.",
    413: "The body is too large.",
    415: "The content encoding is not supported.",
}
WITH_TOKEN = {401: "The token is missing or invalid.", 403: "The token lacks the scope for this."}
LATER = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds."}}


def describe(routes: tuple[ApiRoute, ...]) -> bytes:
    return msgspec.json.encode(description(routes))


def description(routes: tuple[ApiRoute, ...]) -> dict[str, Any]:
    schemas = Schemas([*_types(routes), Problem])
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Twiceproof", "version": __version__, "summary": "Run it twice, it happens once."},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(routes: tuple[ApiRoute, ...]) -> list[Any]:
    found = [route.body for route in routes] + [route.query for route in routes]
    found += [kind for route in routes for answer in route.answers.values() for kind in _kinds(answer)]
    return [kind for kind in found if kind is not None]


def _kinds(answer: RouteAnswer) -> tuple[Any, ...]:
    return answer.type if isinstance(answer.type, tuple) else (answer.type,)


def _operation(route: ApiRoute, schemas: Schemas) -> dict[str, Any]:
    scope = POLICY[route.method, route.path]
    shape: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": _responses(route, scope, schemas),
        "security": [] if scope is Scope.OPEN else [{}, {"token": []}] if scope is Scope.PROVEN else [{"token": []}],
    }
    if route.tag:
        shape["tags"] = [route.tag]
    if text := _description(route, scope):
        shape["description"] = text
    parameters = [*_path_parameters(route), *schemas.query_parameters(route.query), *_header_parameters(route)]
    if parameters:
        shape["parameters"] = parameters
    body = _body(route, schemas)
    return {**shape, "requestBody": body} if body else shape


def _description(route: ApiRoute, scope: Scope) -> str:
    sentences = []
    if scope not in (Scope.OPEN, Scope.PROVEN):
        sentences.append(f"Requires a token with the scope `{Scope.READ if scope is Scope.OPERATOR else scope}`.")
    if route.ignores_unknown_query:
        sentences.append("Query parameters that are not listed here are ignored.")
    return " ".join(sentences)


def _path_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    names = [segment[1:-1] for segment in route.path.split("/") if segment.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": route.params.get(name, ""),
            "schema": dict(route.schemas.get(name, {"type": "string", "minLength": 1})),
        }
        for name in names
    ]


def _header_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in route.headers.items()
    ]


def _body(route: ApiRoute, schemas: Schemas) -> dict[str, Any] | None:
    if route.method not in ("POST", "PUT", "PATCH"):
        return None
    schema = schemas.of(route.body) if route.body is not None else {}
    return {"content": {route.media: {"schema": schema}}, "required": _is_needed(route.body)}


def _is_needed(body: Any) -> bool:
    """Whether a body is required: an empty one is read as `{}`, which lacks required fields."""
    return body is not None and any(field.required for field in msgspec.structs.fields(body))


def _responses(route: ApiRoute, scope: Scope, schemas: Schemas) -> dict[str, Any]:
    errors = dict(ALWAYS)
    if route.method in ("POST", "PUT", "PATCH", "OPTIONS"):
        errors |= WITH_BODY
    if route.body is not None:
        errors[422] = "The body is invalid for this route."
    if scope is not Scope.OPEN:
        errors |= WITH_TOKEN
    responses = {str(status): _problem(text, status, schemas) for status, text in errors.items()}
    responses |= {str(status): _answer(answer, status, schemas) for status, answer in route.answers.items()}
    return dict(sorted(responses.items()))


def _problem(text: str, status: int, schemas: Schemas) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "description": text,
        "content": {"application/problem+json": {"schema": schemas.of(Problem)}},
    }
    return {**shape, "headers": LATER} if status in (429, 503) else shape


def _answer(answer: RouteAnswer, status: int, schemas: Schemas) -> dict[str, Any]:
    if status >= 400 and answer.type is None:
        return _problem(answer.about, status, schemas)
    shape: dict[str, Any] = {"description": answer.about}
    if answer.headers:
        shape["headers"] = {
            name: {"schema": {"type": "string"}, "description": text} for name, text in answer.headers.items()
        }
    if status == 204:
        return shape
    written = [schemas.of(kind) for kind in _kinds(answer) if kind is not None]
    schema = written[0] if len(written) == 1 else {"anyOf": written} if written else {}
    return {**shape, "content": {answer.media: {"schema": schema}}}
