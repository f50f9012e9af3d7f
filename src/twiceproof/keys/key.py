"""Keys: what may be one, and the templates that make one from a call's arguments (`shop:order:{order[id]}`).

A key is text of at most 1024 bytes that a person can read and every store can index.

A field reaches into an argument by attribute (`{order.id}`) or item (`{order[id]}`, `{lines[0][sku]}`), and nothing
else: no calls, no private names, no conversions, no formats. `{{` and `}}` are braces.

Two different events never share a key: in a template with two or more fields, the separator between them (the colon, or
the first other sign) and `%` are percent-encoded inside the fields' values. With one field its value stays as it is.

| value                | text of a field                                                     |
|----------------------|---------------------------------------------------------------------|
| str, int, UUID       | unchanged; `0` is legal                                             |
| Decimal              | plain digits: Decimal("1.10") is `1.1`                              |
| bool                 | `true`, `false`                                                     |
| datetime, date       | ISO 8601; an aware datetime in UTC with `Z`                         |
| Enum                 | its value's text                                                    |
| None, blank text     | refused: two events without an id would become one; blank includes  |
|                      | invisible characters such as a zero-width space                     |
| float, anything else | refused: 0.1 + 0.2 and 0.3 would be two keys; name the field meant  |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn
from unicodedata import category, normalize
from uuid import UUID

from ..errors import KeyRefused, Misuse
from ..safe_text import INVISIBLE
from .canonical import datetime_text, decimal_text, int_text

__all__ = [
    "LONGEST_KEY",
    "Template",
    "TemplateField",
    "escape",
    "escapes",
    "is_blank",
    "part_text",
    "read_field",
    "validate_key",
]


LONGEST_KEY = 1024  # bytes in UTF-8: what every store can index

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def validate_key(key: Any) -> str:
    """Return the key in Unicode's normal form (NFC). Raises KeyRefused, with the reason and the next move."""
    if (
        type(key) is str
        and key.isascii()
        and key.isprintable()
        and 0 < len(key) <= LONGEST_KEY
        and key[0] != " "
        and key[-1] != " "
    ):
        return key
    return _validate_slowly(key)


def _validate_slowly(key: Any) -> str:
    if not isinstance(key, str):
        _refuse(f"the key is a {type(key).__qualname__}, not text", f"write it as text: {_example(key)}")
    return _checked(normalize("NFC", str.__str__(key)))


def _checked(key: str) -> str:
    if is_blank(key):
        _refuse("the key is blank", "use an id that the event always carries")
    if found := _SURROGATE.search(key):
        _refuse(f"the key has half a surrogate pair ({found[0]!a})", "decode it with its right encoding")
    if found := _CONTROL.search(key):
        _refuse(f"the key has the control character {found[0]!a}", "remove it, or use body_hash()", key)
    if key != key.strip():
        _refuse("the key begins or ends with white space", "strip() it where it comes in", key)
    if (size := len(key.encode())) > LONGEST_KEY:
        _refuse(f"the key has {size} bytes, the most is {LONGEST_KEY}", "use an id, or body_hash()", key)
    return key


def is_blank(text: str) -> bool:
    """Return whether a text has nothing visible: it comes from an empty field, and all such events would share one."""
    return all(letter.isspace() or _is_unseen(letter) for letter in text)


def _is_unseen(letter: str) -> bool:
    """Return whether a letter is invisible. Controls and half surrogates are refused by their own names."""
    kind = category(letter)
    return kind in ("Cf", "Mn") or (kind not in ("Cc", "Cs") and INVISIBLE.match(letter) is not None)


def _example(key: Any) -> str:
    return 'key="nightly" or key="order:{order[id]}"' if key is None else 'f"order:{order_id}"'


def _refuse(reason: str, move: str, key: str | None = None) -> NoReturn:
    raise KeyRefused(f"{reason}; {move}", key=key)


# -- templates ---------------------------------------------------------------------------------

NAMED = 10  # names that a message lists
_NAME = re.compile(r"[^\W\d_]\w*")
_STEP = re.compile(r"\.(?P<attribute>[^\W\d_]\w*)|\[(?P<index>[0-9]{1,9})\]|\[(?P<item>(?!__)[^\[\]]+)\]")


@dataclass(frozen=True, slots=True)
class FieldStep:
    """One step into a value: an attribute's name, or an item's name or index."""

    to: str | int
    attribute: bool

    def __str__(self) -> str:
        return f".{self.to}" if self.attribute else f"[{self.to}]"


@dataclass(frozen=True, slots=True)
class TemplateField:
    """`order[id]`: the argument `order`, and one step to its item `id`."""

    text: str
    name: str
    steps: tuple[FieldStep, ...]

    @property
    def path(self) -> str:
        """Dotted, whichever way the steps are written: `order.id`, `lines.0.sku`."""
        return ".".join([self.name, *(str(step.to) for step in self.steps)])

    def find(self, arguments: Mapping[str, Any]) -> Any:
        """Return the value it points at. Raises KeyRefused if something on the way is missing."""
        try:
            value = arguments[self.name]
        except KeyError:
            known = ", ".join(map(str, list(arguments)[:NAMED])) or "nothing"
            _missing(self, self.name, f"there is only {known}", "use a name that is there")
        for step in self.steps:
            try:
                value = getattr(value, step.to) if step.attribute else value[step.to]  # type: ignore[arg-type]
            except (AttributeError, LookupError, TypeError):
                _not_there(self, step, value)
        return value


def read_field(text: str, where: str) -> TemplateField:
    """Parse a field. Raises Misuse for anything but names, attributes and items."""
    start = _NAME.match(text)
    if not start:
        _bad(text, where, "does not begin with an argument's name")
    steps, at = [], start.end()
    while at < len(text):
        found = _STEP.match(text, at)
        if not found:
            _bad(text, where, _why_not(text[at:]))
        steps.append(_step(found))
        at = found.end()
    return TemplateField(text, start[0], tuple(steps))


def _step(found: re.Match[str]) -> FieldStep:
    if found["attribute"]:
        return FieldStep(found["attribute"], attribute=True)
    return FieldStep(int(found["index"]) if found["index"] else found["item"], attribute=False)


def _why_not(rest: str) -> str:
    if rest[0] == "!":
        return f"has the conversion {rest!r}, which keys do not take"
    if rest[0] == ":":
        return f"has the format {rest!r}, which keys do not take"
    if rest[0] == "(":
        return "calls something, which keys may not"
    if rest.startswith(("._", "[__")):
        return f"reaches for the private {rest!r}"
    return f"cannot be read from {rest!r} on"


def _bad(text: str, where: str, why: str) -> NoReturn:
    raise Misuse(f"the field {{{text}}} {where} {why}; write {{order[id]}} or {{order.id}}, or give key= a function")


def _not_there(field: TemplateField, step: FieldStep, value: Any) -> NoReturn:
    if value is None:
        _missing(field, str(step), "what it is looked for in is None", "use an id that is always there")
    if step.attribute and isinstance(value, Mapping) and step.to in value:
        _missing(field, str(step), "it is an item of a dict", f"write [{step.to}] instead of .{step.to}")
    if not step.attribute and isinstance(step.to, str) and hasattr(value, step.to):
        _missing(field, str(step), "it is an attribute", f"write .{step.to} instead of [{step.to}]")
    kind = type(value).__qualname__
    _missing(field, str(step), f"the {kind} there has none", "use a field that every event carries")


def _missing(field: TemplateField, what: str, why: str, move: str) -> NoReturn:
    raise KeyRefused(f"the key's field {{{field.text}}} has no {what}: {why}; {move}", field=field.text)


def part_text(value: Any, name: str) -> str:
    """Return the value's text in a key. `name` is what an error calls it."""
    if type(value) is str:
        nothing = not value or value.isspace() if value.isascii() else is_blank(value)
        return _blank(name) if nothing else value
    if type(value) is int:
        return int_text(value)
    return _rarer_text(value, name)


def _rarer_text(value: Any, name: str) -> str:
    if isinstance(value, Enum):
        return part_text(value.value, name)
    if isinstance(value, str):
        return part_text(str.__str__(value), name)
    for kind, text in _TEXTS:
        if isinstance(value, kind):
            return _text_or_refusal(text, value, name)
    raise KeyRefused(f"{name} is {_what(value)}", field=name)


def _text_or_refusal(text: Callable[[Any], str], value: Any, name: str) -> str:
    try:
        return text(value)
    except ValueError as why:
        raise KeyRefused(f"{name} has no text: {why}; use an id that is always there", field=name) from None


def _what(value: Any) -> str:
    if value is None:
        return "None: a key without it would be shared by all such events; use an id that is always there"
    kind = type(value).__qualname__
    if isinstance(value, float):
        return f"a {kind}, whose digits may differ between two equal events; use an int, a Decimal or text"
    return f"a {kind}, which has no short text; name one field of it, as in {{order[id]}}, or use body_hash()"


def _blank(name: str) -> str:
    message = f"{name} is blank: a key without it would be shared by all such events; "
    raise KeyRefused(message + "use an id that is always there", field=name)


_TEXTS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (bool, lambda value: "true" if value else "false"),  # before int: a bool is one
    (int, int_text),
    (UUID, str),
    (Decimal, decimal_text),
    (datetime, datetime_text),  # before date: a datetime is one
    (date, date.isoformat),
)


def escapes(separators: str) -> dict[int, str]:
    """Return percent-encodings of the separators and of `%`: "a:b","c" and "a","b:c" are two keys."""
    return {ord(sign): f"%{ord(sign):02X}" for sign in "%" + separators}


def escape(text: str, table: dict[int, str]) -> str:
    # NFC first: U+037E is a `;` afterwards, and must be escaped as one.
    return (text if text.isascii() else normalize("NFC", text)).translate(table)


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
        """Return the key's text. Raises KeyRefused for a field that is missing, None, blank, or has no text."""
        fields, literals = self.fields, self._literals
        if len(fields) == 1:
            field = fields[0]
            return literals[0] + part_text(field.find(arguments), field.text) + literals[1]
        parts = [literals[0]]
        for field, literal in zip(fields, literals[1:], strict=True):
            parts += escape(part_text(field.find(arguments), field.text), self._table), literal
        return "".join(parts)

    def beginning(self, text: str) -> tuple[str, bool]:
        """Return how a key begins whose first field is this text, and whether that is all of it: where a person knows
        an order's number, and not the key."""
        if not self.fields:
            return self._literals[0], True
        is_whole = len(self.fields) == 1
        return self._literals[0] + (text if is_whole else escape(text, self._table)) + self._literals[1], is_whole

    def make(self, arguments: Mapping[str, Any]) -> str:
        """Return the key for a call's arguments, by name, defaults applied. Raises KeyRefused."""
        return validate_key(self.render(arguments))


def _read(text: str) -> tuple[tuple[str, ...], tuple[TemplateField, ...]]:
    """Return the literals around the fields (one more than fields), and the fields."""
    literals, fields = [""], []
    for piece in _PIECE.finditer(_checked_template_text(text)):
        if piece["stray"]:
            _lone_brace(text, piece.start())
        elif piece["field"] is not None:
            fields.append(read_field(piece["field"], f"in {text!r} at {piece.start()}"))
            literals.append("")
        else:
            literals[-1] += piece["text"] or piece[0][0]
    return tuple(literals), tuple(fields)


def _checked_template_text(text: str) -> str:
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
    """Return one character of each text between two fields: enough to tell where a field ends."""
    between = template._literals[1:-1]
    return "".join(_separator(text, field, template) for text, field in zip(between, template.fields, strict=False))


def _separator(literal: str, field: TemplateField, template: Template) -> str:
    found = ":" if ":" in literal else _SEPARATOR.search(literal)
    if found:
        return found[0]
    raise Misuse(
        f"{template.text!r} has no separator after {{{field.text}}}: ab + c and a + bc would be one key; "
        "put a colon between the fields"
    )
