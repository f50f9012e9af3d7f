"""A field of a template: which argument, and where in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import KeyRefused, Misuse

__all__ = ["Field", "read_field"]

_NAME = re.compile(r"[^\W\d_]\w*")
_STEP = re.compile(r"\.(?P<attribute>[^\W\d_]\w*)|\[(?P<index>[0-9]{1,9})\]|\[(?P<item>(?!__)[^\[\]]+)\]")


@dataclass(frozen=True, slots=True)
class Step:
    """One step into a value: an attribute's name, or an item's name or index."""

    to: str | int
    attribute: bool

    def __str__(self) -> str:
        return f".{self.to}" if self.attribute else f"[{self.to}]"


@dataclass(frozen=True, slots=True)
class Field:
    """`order[id]`: the argument `order`, and one step to its item `id`."""

    text: str
    name: str
    steps: tuple[Step, ...]

    @property
    def path(self) -> str:
        """Dotted, whichever way the steps are written: `order.id`, `lines.0.sku`."""
        return ".".join([self.name, *(str(step.to) for step in self.steps)])

    def find(self, arguments: Mapping[str, Any]) -> Any:
        """The value it points at. Raises KeyRefused if something on the way is missing."""
        try:
            value = arguments[self.name]
        except KeyError:
            _missing(self, self.name, f"the call has no argument {self.name!r}", "pass it")
        for step in self.steps:
            try:
                value = getattr(value, step.to) if step.attribute else value[step.to]  # type: ignore[arg-type]
            except (AttributeError, LookupError, TypeError):
                _not_there(self, step, value)
        return value


def read_field(text: str, where: str) -> Field:
    """Raises Misuse, saying where and what, for anything but names, attributes and items."""
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
    return Field(text, start[0], tuple(steps))


def _step(found: re.Match[str]) -> Step:
    if found["attribute"]:
        return Step(found["attribute"], attribute=True)
    return Step(int(found["index"]) if found["index"] else found["item"], attribute=False)


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


def _not_there(field: Field, step: Step, value: Any) -> NoReturn:
    if value is None:
        _missing(field, str(step), "what it is looked for in is None", "use an id that is always there")
    if step.attribute and isinstance(value, Mapping) and step.to in value:
        _missing(field, str(step), "it is an item of a dict", f"write [{step.to}] instead of .{step.to}")
    if not step.attribute and isinstance(step.to, str) and hasattr(value, step.to):
        _missing(field, str(step), "it is an attribute", f"write .{step.to} instead of [{step.to}]")
    kind = type(value).__qualname__
    _missing(field, str(step), f"the {kind} there has none", "use a field that every event carries")


def _missing(field: Field, what: str, why: str, move: str) -> NoReturn:
    raise KeyRefused(f"the key's field {{{field.text}}} has no {what}: {why}; {move}", field=field.text)
