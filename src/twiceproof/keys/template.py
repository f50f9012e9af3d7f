"""Key templates: `shop:order:{order[id]}`, read once, rendered at every call.

A field reaches into an argument by attribute (`{order.id}`) or item (`{order[id]}`, `{lines[0][sku]}`), and
nothing else: no calls, no private names, no conversions, no formats. `{{` and `}}` are braces.

Two different events never share a key: in a template with two or more fields, the separator between them
(the colon, or the first other sign) and `%` are percent-encoded inside the fields' values. With one
field its value stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from ..errors import Misuse
from .field import Field, read_field
from .part import escape, escapes, part_text

__all__ = ["Template"]

_PIECE = re.compile(r"\{\{|\}\}|\{(?P<field>[^{}]*)\}|(?P<text>[^{}]+)|(?P<stray>[{}])")
# < = > join with a combining mark that follows them, and % is the escape itself: none of them separates.
_SEPARATOR = re.compile(r"[ -$&-/:;?@\[-`{-~]")


class Template:
    """A key with fields. `names` are the arguments it uses, `fields` where in them it looks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._literals, self.fields = _read(text)
        self.names = frozenset(field.name for field in self.fields)
        self._table = escapes(_separators(self))

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def render(self, arguments: Mapping[str, Any]) -> str:
        """The key's text. Raises KeyRefused for a field that is missing, None, blank, or has no text."""
        fields, literals = self.fields, self._literals
        if len(fields) == 1:
            field = fields[0]
            return literals[0] + part_text(field.find(arguments), field.text) + literals[1]
        parts = [literals[0]]
        for field, literal in zip(fields, literals[1:], strict=True):
            parts += escape(part_text(field.find(arguments), field.text), self._table), literal
        return "".join(parts)


def _read(text: str) -> tuple[tuple[str, ...], tuple[Field, ...]]:
    """The literals around the fields (one more than fields), and the fields."""
    literals, fields = [""], []
    for piece in _PIECE.finditer(_checked(text)):
        if piece["stray"]:
            _lone_brace(text, piece.start())
        elif piece["field"] is not None:
            fields.append(read_field(piece["field"], f"in {text!r} at {piece.start()}"))
            literals.append("")
        else:
            literals[-1] += piece["text"] or piece[0][0]
    return tuple(literals), tuple(fields)


def _checked(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise Misuse(f'the key template is {text!r}; write one like "shop:order:{{order[id]}}"')
    return text


def _lone_brace(text: str, at: int) -> NoReturn:
    brace = text[at]
    raise Misuse(
        f"{text!r} has a {brace!r} at {at} that belongs to no field; "
        f"write a field as {{order[id]}}, and {brace * 2} for the brace itself"
    )


def _separators(template: Template) -> str:
    """One sign out of each text between two fields: enough to tell where a field ends."""
    between = template._literals[1:-1]
    return "".join(_separator(text, field, template) for text, field in zip(between, template.fields, strict=False))


def _separator(literal: str, field: Field, template: Template) -> str:
    found = ":" if ":" in literal else _SEPARATOR.search(literal)
    if found:
        return found[0]
    raise Misuse(
        f"{template.text!r} has no separator after {{{field.text}}}: ab + c and a + bc would be one key; "
        "put a colon between the fields"
    )
