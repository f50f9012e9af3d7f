"""Texts with fields: `Your order {order.id}`. `.x` and `[x]` mean the same; `{{` and `}}` are braces."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from ..errors import Misuse, NotDone
from ..flows.engine.step_errors import BrokenFlowText
from ..keys.key import TemplateField, read_field
from .expression import Expression, ExpressionError, NameUse, compiled, plain
from .values import BadValue, Missing, step_into, text_of

__all__ = ["Formula", "Text", "key_template", "quoted", "read_text", "read_value"]


_PIECE = re.compile(r"\{\{|\}\}|\{(?P<field>[^{}]*)\}|(?P<text>[^{}]+)|(?P<stray>[{}])")
Field = tuple[TemplateField, int]


class Text(Struct, frozen=True):
    """A text with fields, ready to be filled in."""

    source: str
    parts: tuple[str | TemplateField, ...]
    names: tuple[NameUse, ...]

    def render(self, scope: Mapping[str, Any], encode: Callable[[str], str] = str) -> str:
        """Return the text with its fields filled in; `encode` is applied to each field's text.

        Raises Missing for a field that is missing, NotDone for one that is null or empty: an empty text in an address
        or a mail is worse than a run that stops.
        """
        return "".join(part if isinstance(part, str) else encode(_filled(part, scope)) for part in self.parts)


def read_text(source: str) -> Text:
    """Parse a text. Raises ExpressionError, with the column of the field."""
    parts: list[str | TemplateField] = []
    names: list[NameUse] = []
    for piece in _PIECE.finditer(source):
        if piece["stray"]:
            raise ExpressionError(f"a {piece['stray']} belongs to no field; write it twice", piece.start())
        if piece["field"] is None:
            parts.append(piece["text"] or piece[0][0])
            continue
        try:
            field = read_field(piece["field"].strip(), "in a text")
        except Misuse:
            raise ExpressionError(
                f"{{{piece['field']}}} is no path; write {{order.id}}, and anything else as a value that begins with =",
                piece.start(),
            ) from None
        parts.append(field)
        path = (field.name, *(str(step.to) for step in field.steps))
        names.append(NameUse(path, piece.start() + 1))
    return Text(source, tuple(parts), tuple(names))


def _filled(field: TemplateField, scope: Mapping[str, Any]) -> str:
    if field.name not in scope:
        raise Missing(field.name, "there is no such name here")
    value, path = scope[field.name], field.name
    for step in field.steps:
        path += f".{step.to}"
        value = step_into(value, step.to, path)
    if value is None or value == "":
        raise NotDone(f"{path}: it is empty; write = default(…) where it may be", final=True)
    try:
        return text_of(value)
    except BadValue as error:
        raise BrokenFlowText(f"{path}: {error}", final=True) from None


def quoted(text: str) -> str:
    """Encode a field for the path or query of a URL, so that it cannot end that part."""
    return quote(text, safe="")


def key_template(source: str) -> str:
    """Return a file's key in the form of Python's key templates: inputs are maps, so paths use items."""
    text = read_text(source)
    return "".join(
        part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else _by_item(part) for part in text.parts
    )


def _by_item(field: TemplateField) -> str:
    return f"{{{field.name}{''.join(f'[{step.to}]' for step in field.steps)}}}"


# -- values of a file ----------------------------------------------------------------------------


class Formula(Struct, frozen=True):
    """One value of a file: constants, texts with fields, and expressions, in maps and lists as in the file."""

    tree: Any
    names: tuple[NameUse, ...] = ()

    def evaluate(self, scope: Mapping[str, Any]) -> Any:
        return _evaluated(self.tree, scope)


def read_value(tree: Any) -> Formula:
    """Compile a value: `=…` is an expression, other texts have fields, `==…` is a text that begins with `=`."""
    names: list[NameUse] = []
    return Formula(_compiled(tree, names), tuple(names))


def _compiled(tree: Any, names: list[NameUse]) -> Any:
    if isinstance(tree, str):
        made = _compiled_text(tree)
        names += () if isinstance(made, str) else made.names
        return made
    if isinstance(tree, dict):
        return {name: _compiled(inner, names) for name, inner in tree.items()}
    return [_compiled(inner, names) for inner in tree] if isinstance(tree, list) else plain(tree)


def _compiled_text(tree: str) -> str | Text | Expression:
    if tree.startswith("=="):
        return tree[1:]
    if tree.startswith("="):
        return compiled(tree[1:])
    text = read_text(tree)
    return text if text.names else text.render({})


def _evaluated(tree: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(tree, Expression):
        return tree.evaluate(scope)
    if isinstance(tree, Text):
        return tree.render(scope)
    if isinstance(tree, dict):
        return {name: _evaluated(inner, scope) for name, inner in tree.items()}
    return [_evaluated(inner, scope) for inner in tree] if isinstance(tree, list) else tree
