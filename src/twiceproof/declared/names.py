"""The names in a file: those that a step reads (in all its expressions and texts), requests, and Python functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from ..errors import Misuse
from .expression import NameUse, compiled
from .model import (
    ActingSpec,
    ApproveSpec,
    EachSpec,
    HttpSpec,
    KeepSpec,
    MailSpec,
    ProbeSpec,
    SqlLookSpec,
    SqlSpec,
)
from .nodes import Path
from .reading import ReadStep
from .template import read_text

__all__ = [
    "INPUT_TYPES",
    "FieldText",
    "fields_of",
    "fields_of_value",
    "imported",
    "read_input_type",
    "read_request",
    "uses_of",
]


ANSWER = ("status", "headers", "body")  # of an HTTP request
FORMULAS = ("when", "each", "until")
TEXTS = ("subject", "text", "html", "requester", "fail", "key", "order", "external", "name")
SENT = ("query", "headers", "json", "form", "to", "cc", "given", "payload", "command")
VALUES = (*SENT, "default", "show", "set", "done")


class FieldText(Struct, frozen=True):
    """One text of a step: its kind, its place, the offset in its value, and the names that only it may read."""

    kind: Literal["expression", "text"]
    source: str
    path: Path
    offset: int = 0
    extra: tuple[str, ...] = ()

    def names(self) -> tuple[NameUse, ...]:
        """Raises ExpressionError for one that cannot be read."""
        return compiled(self.source).names if self.kind == "expression" else read_text(self.source).names


def uses_of(step: ReadStep) -> Iterator[NameUse]:
    """Return every name that a step reads itself: not those of the steps in it, nor of its own answer."""
    for field in fields_of(step):
        yield from (use for use in field.names() if use.path[0] not in field.extra)


def fields_of(step: ReadStep) -> Iterator[FieldText]:
    """Every expression and text of a step."""
    spec = step.spec
    named = dict(zip(spec.__struct_fields__, spec.__struct_encode_fields__, strict=True))
    for field, name in named.items():
        value = getattr(spec, field)
        path = (*step.path, name)
        if _is_formula(field, spec) and isinstance(value, str):
            yield FieldText("expression", value, path)
        elif field in TEXTS and isinstance(value, str) and not _is_value(field, spec):
            extra = ("result",) if field == "external" else ()
            yield FieldText("text", value, path, extra=extra)
        elif (field in VALUES or _is_value(field, spec)) and value is not UNSET and not _is_sql(field, spec):
            yield from fields_of_value(value, path, ("effect_key",) if isinstance(spec, HttpSpec) else ())
    yield from _of_verb(step)


def fields_of_value(tree: Any, path: Path, extra: tuple[str, ...] = ()) -> Iterator[FieldText]:
    """Every expression and text in a value of a file."""
    if isinstance(tree, dict):
        for name, inner in tree.items():
            yield from fields_of_value(inner, (*path, name), extra)
    elif isinstance(tree, list):
        for number, inner in enumerate(tree):
            yield from fields_of_value(inner, (*path, number), extra)
    elif isinstance(tree, str) and not tree.startswith("=="):
        is_expression = tree.startswith("=")
        source = tree[1:] if is_expression else tree
        yield FieldText("expression" if is_expression else "text", source, path, int(is_expression), extra)


def _is_formula(field: str, spec: Any) -> bool:
    return field in FORMULAS or (field == "keep" and isinstance(spec, KeepSpec))


def _is_value(field: str, spec: Any) -> bool:
    """The parts of a mail and the text of a request may be expressions; other texts have fields only."""
    return field in ("subject", "text", "html") and isinstance(spec, MailSpec | HttpSpec)


def _is_sql(field: str, spec: Any) -> bool:
    """SQL takes neither fields nor expressions: parameters only."""
    return field == "query" and isinstance(spec, SqlSpec)


def _of_verb(step: ReadStep) -> Iterator[FieldText]:
    spec, path = step.spec, step.path
    yield from _of_people(step)
    if isinstance(spec, EachSpec) and spec.id is not None:
        yield FieldText("text", spec.id, (*path, "id"), extra=(spec.as_,))
    if isinstance(spec, ActingSpec) and spec.id is not None:
        yield FieldText("text", spec.id, (*path, "id"))
    if isinstance(spec, HttpSpec):
        yield from _of_request(spec, path)
    if isinstance(spec, SqlSpec):
        for verb in ("upsert", "insert_once", "find_or_create"):
            asked = getattr(spec, verb)
            if asked is not None:
                yield from fields_of_value(asked.row, (*path, verb, "row"))
    repeat = getattr(spec, "repeat", None)
    if isinstance(repeat, ProbeSpec):
        yield from _of_probe(repeat, (*path, "repeat"))


def _of_people(step: ReadStep) -> Iterator[FieldText]:
    """Return the texts that are sent to people: notices about approvals, and files."""
    spec, path = step.spec, step.path
    if isinstance(spec, ApproveSpec) and spec.ask is not None:
        yield FieldText("text", spec.ask.text, (*path, "ask", "text"), extra=("link",))
        yield from fields_of_value(spec.ask.to, (*path, "ask", "to"))
    if isinstance(spec, MailSpec):
        for number, file in enumerate(spec.attach):
            yield FieldText("text", file.name, (*path, "attach", number, "name"))
            yield from fields_of_value(file.content, (*path, "attach", number, "content"))


def _of_request(spec: HttpSpec, path: Path) -> Iterator[FieldText]:
    start = len(spec.http) - len(_path_of(spec.http))
    yield FieldText("text", _path_of(spec.http), (*path, "http"), start, ("effect_key",))
    yield FieldText("expression", spec.result, (*path, "result"), extra=ANSWER)
    if spec.expect is not None:
        yield FieldText("expression", spec.expect, (*path, "expect"), extra=ANSWER)


def _of_probe(repeat: ProbeSpec, path: Path) -> Iterator[FieldText]:
    if isinstance(repeat.check, SqlLookSpec):
        yield from fields_of_value(repeat.check.given, (*path, "check", "with"), ("effect_key",))
    if isinstance(repeat.check, str) and repeat.check.startswith("GET "):
        start = len(repeat.check) - len(_path_of(repeat.check))
        yield FieldText("text", _path_of(repeat.check), (*path, "check"), start, ("effect_key",))
    if not isinstance(repeat.found, msgspec.UnsetType):
        yield FieldText("expression", repeat.found, (*path, "found"), extra=(*ANSWER, "effect_key"))


def _path_of(request: str) -> str:
    """The path of `POST accounting /invoices/{id}`: what comes after the connection."""
    return request.strip().partition(" ")[2].strip().partition(" ")[2].strip()


# -- what a file names -------------------------------------------------------------------------


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def read_request(text: str) -> tuple[str, str, str]:
    """Return the method, the connection and the path of `POST accounting /invoices`. Raises Misuse."""
    method, _, rest = text.strip().partition(" ")
    connection, _, path = rest.strip().partition(" ")
    if method not in METHODS or not connection or not path.strip().startswith("/"):
        raise Misuse(f"{text!r} is no request; write METHOD CONNECTION /path: POST accounting /invoices")
    return method, connection, path.strip()


def imported(name: str) -> Callable[..., Any]:
    """Return the function that `module:function` names."""
    module, colon, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute) if colon and module else None
    except (ImportError, AttributeError) as error:
        raise Misuse(
            f"{name} cannot be imported ({error}); write module:function, of a module on Python's path."
        ) from None
    if not callable(found):
        raise Misuse(f"{name!r} names no function; write module:function.")
    function: Callable[..., Any] = found
    return function


# -- types of inputs ---------------------------------------------------------------------------


INPUT_TYPES: dict[str, Any] = {
    "text": str,
    "number": int | float,
    "integer": int,
    "yes_no": bool,
    "list": list[Any],
    "map": dict[str, Any],
    "any": Any,
}


def read_input_type(declared: Any) -> tuple[str, bool] | None:
    """Return the name of an input's type and whether it is optional; None if it is not a type."""
    word, optional = (declared, False) if isinstance(declared, str) else ("map", False)
    if word.startswith("optional "):
        word, optional = word.removeprefix("optional ").strip(), True
    return (word, optional) if word in INPUT_TYPES else None
