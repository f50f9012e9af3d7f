"""The form that starts a run: a field for each leaf of a flow's input, and values that are sent as they were typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...declared.model import FlowFile, TriggerSpec
from ...declared.names import read_input_type
from ...errors import Misuse
from ...flows.flow import Flow
from . import listing as ui

__all__ = ["INPUT", "StartField", "fields_of", "fields_of_input", "input_of", "labels_of"]


INPUT = "input."  # before the names of an input's fields: apart from those of the form itself


class StartField(Struct, frozen=True):
    """One leaf of a flow's input, as a form asks for it."""

    path: tuple[str, ...]
    kind: str  # a word of INPUT_TYPES
    is_optional: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def shown(self) -> ui.ActField:
        word = f"{self.name} ({'optional ' if self.is_optional else ''}{self.kind.replace('_', '/')})"
        choices = ("true", "false") if self.kind == "yes_no" and not self.is_optional else ()
        is_json = self.kind in ("list", "map", "any")
        return ui.ActField(
            f"{INPUT}{self.name}", word, is_required=not self.is_optional, choices=choices, is_json=is_json
        )

    def read(self, typed: str) -> Any:
        """The value as it was typed: a number keeps its digits. None: it was left out. Raises Misuse."""
        if not typed.strip():
            if self.is_optional:
                return None
            raise Misuse(f"{self.name} is empty; fill it in.")
        if self.kind == "text":
            return typed
        try:
            msgspec.json.decode(typed, type=KINDS.get(self.kind, Any))
        except msgspec.ValidationError:
            raise Misuse(f"{self.name} is no {self.kind.replace('_', '/')}; write it as JSON does.") from None
        except msgspec.DecodeError:
            raise Misuse(
                f"{self.name} is not JSON; write a text in quotes, a number, true, or a whole value."
            ) from None
        return Raw(typed.encode())


KINDS: dict[str, Any] = {
    "number": int | float,
    "integer": int,
    "yes_no": bool,
    "list": list[Any],
    "map": dict[str, Any],
}


def fields_of_input(declared: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[StartField]:
    """The leaves of an input, in the order of the file."""
    for name, kind in declared.items():
        if isinstance(kind, dict):
            yield from fields_of_input(kind, (*above, name))
        else:
            word, optional = read_input_type(kind) or ("any", False)
            yield StartField((*above, name), word, optional)


def input_of(fields: Sequence[StartField], typed: Mapping[str, str]) -> dict[str, Any]:
    """Put the input together from the form's fields. Raises Misuse."""
    made: dict[str, Any] = {}
    for field in fields:
        value = field.read(typed.get(INPUT + field.name, ""))
        inner = made
        for name in field.path[:-1]:
            inner = inner.setdefault(name, {})
        if value is not None:
            inner[field.path[-1]] = value
    return made


def fields_of(flow: Flow, file: FlowFile | None) -> Iterator[StartField]:
    """What a form asks for: of a file each leaf of its input, of a flow in Python each argument, as JSON."""
    if file is not None:
        yield from fields_of_input(file.input)
    else:
        yield from (StartField((name,), "any", is_optional=len(flow.inputs.names) > 1) for name in flow.inputs.names)


def labels_of(file: FlowFile) -> Iterator[str]:
    """What the button says; nothing, if the file does not say that people may start it."""
    for trigger in file.on:
        if trigger == "manual":
            yield "Start a run"
        elif isinstance(trigger, TriggerSpec) and trigger.manual is not None:
            yield trigger.manual
