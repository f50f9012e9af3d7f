"""How steps may be repeated, according to an OpenAPI document: accepted keys, and reads that find an earlier effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from ..errors import Misuse
from .model import HttpSpec
from .names import read_request
from .reading import ReadFlow, ReadStep, walk

__all__ = ["RepeatSuggestion", "suggest_repeats"]


_FIELD = re.compile(r"\{[^{}]*\}")
KEYS = ("idempotency-key", "x-idempotency-key", "x-request-id")
REFERENCES = (
    "external_id",
    "external_reference",
    "reference",
    "reference_id",
    "client_reference",
    "order_id",
    "key",
    "id",
)


class RepeatSuggestion(Struct, frozen=True):
    """A repeat that may be declared for a step, and the reason from the document."""

    step: str
    line: int
    repeat: Any
    why: str


def suggest_repeats(read: ReadFlow, document: Mapping[str, Any]) -> list[RepeatSuggestion]:
    """Return a suggestion for every request of the document that changes something.

    Args:
        read: The flow's file.
        document: The parsed OpenAPI document.
    """
    paths = document.get("paths")
    if not isinstance(paths, dict):
        raise Misuse("This is no OpenAPI document: it has no paths. Give the JSON or YAML that the service publishes.")
    return [found for step in walk((*read.steps, *read.on_error)) for found in _of_step(read, step, paths, document)]


def _of_step(
    read: ReadFlow, step: ReadStep, paths: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[RepeatSuggestion]:
    spec = step.spec
    if not isinstance(spec, HttpSpec):
        return
    method, connection, path = read_request(spec.http)
    template = next((known for known in paths if _is_same(known, path.partition("?")[0])), None)
    operation = paths.get(template or "", {}).get(method.lower())
    if method in ("GET", "HEAD") or not isinstance(operation, dict) or template is None:
        return
    found = _repeat(spec, method, connection, template, paths, document)
    if found is not None:
        yield RepeatSuggestion(step.name or step.verb, read.document.place(step.path).line, *found)


def _is_same(template: str, path: str) -> bool:
    """Whether a path of the document and one of a step are equal, apart from their fields."""
    ours, theirs = (_FIELD.sub("{}", text).strip("/").split("/") for text in (path, template))
    return len(ours) <= len(theirs) and theirs[-len(ours) :] == ours  # the beginning may be in the connection's address


def _repeat(
    spec: HttpSpec, method: str, connection: str, template: str, paths: Mapping[str, Any], document: Mapping[str, Any]
) -> tuple[Any, str] | None:
    operation = paths[template][method.lower()]
    for parameter in _parameters(paths[template], operation, document):
        name = str(parameter.get("name", ""))
        if parameter.get("in") == "header" and name.lower() in KEYS:
            return {"keyed": name}, f"{method} {template} takes the header {name}"
    if method in ("PUT", "DELETE") and template.rstrip("/").endswith("}"):
        return "safe", f"{method} {template} sets or removes one thing by its id"
    look = paths[template].get("get")
    if method == "POST" and isinstance(look, dict):
        return _check(spec, connection, template, _parameters(paths[template], look, document))
    return None


def _check(
    spec: HttpSpec, connection: str, template: str, parameters: list[Mapping[str, Any]]
) -> tuple[Any, str] | None:
    """Return a check, if there is a list that can be filtered by a reference which the request sends."""
    sent = spec.json if isinstance(spec.json, dict) else {}
    filters = {str(one.get("name")) for one in parameters if one.get("in") == "query"}
    for name in (*REFERENCES, *sent):
        value = sent.get(name)
        if name in filters and isinstance(value, str) and value.startswith("="):
            path = template.strip("/")
            check = f"GET {connection} /{path}?{name}={{{value[1:]}}}"
            found = "body.items[0] if len(body.items) > 0 else null"
            return {"check": check, "found": found}, f"GET {template} finds by {name}, which the request sends"
    return None


def _parameters(
    path: Mapping[str, Any], operation: Mapping[str, Any], document: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    given = [*(path.get("parameters") or []), *(operation.get("parameters") or [])]
    return [_resolved(one, document) for one in given if isinstance(one, dict)]


def _resolved(one: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = one.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return one
    found: Any = document
    for part in reference[2:].split("/"):
        found = found.get(part, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}
