"""The names that a file reads: each must be defined on every path to the place where it is read."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import Struct

from .comparisons import misfits
from .expression import NameUse
from .findings import LintFindings
from .model import EachSpec, FlowFile, SetSpec
from .names import FieldText, fields_of, fields_of_value, read_input_type
from .nodes import Path
from .reading import ReadFlow, ReadStep

__all__ = ["ALWAYS", "NameInReach", "Names", "NamesCheck"]


ALWAYS = ("run", "now")
FAILED = "the run got that far"  # the condition of names in the steps that follow a failure


class NameInReach(Struct, frozen=True):
    """A name in scope: the line that defines it, and the condition under which it is defined."""

    line: int
    condition: str | None = None
    fields: Mapping[str, Any] | None = None  # of a declared map
    kind: str | None = None  # of a declared input


Names = dict[str, NameInReach]


class NamesCheck:
    """Follows the steps of a file, and checks what they read."""

    def __init__(self, read: ReadFlow, file: FlowFile, findings: LintFindings) -> None:
        self._read = read
        self._file = file
        self._findings = findings

    def run(self) -> Names:
        """Check the inputs, every step, the result and the steps after a failure. Returns the inputs' names."""
        names = self._inputs()
        reach = self._sequence(self._read.steps, dict(names))
        for field in fields_of_value(self._file.returns, ("returns",)):
            self._field(field, reach)
        late = {name: NameInReach(known.line, FAILED) for name, known in reach.items() if name not in names}
        self._sequence(self._read.on_error, {**late, **names, "error": NameInReach(0)})
        return names

    # -- inputs ----------------------------------------------------------------------------------

    def _inputs(self) -> Names:
        names: Names = {}
        for name, declared in self._file.input.items():
            path: Path = ("input", name)
            self._input_type(declared, path)
            fields = declared if isinstance(declared, dict) else None
            kind = None if fields is not None else (read_input_type(declared) or (None,))[0]
            names[name] = NameInReach(self._findings.line(path), None, fields, kind)
        return names

    def _input_type(self, declared: Any, path: Path) -> None:
        if isinstance(declared, dict):
            for name, inner in declared.items():
                self._input_type(inner, (*path, name))
        elif read_input_type(declared) is None:
            found = f"{declared!r} is no type"
            instead = "one of text, number, integer, yes_no, list, map, any, or fields"
            self._findings.report("type", path, found, instead)

    # -- steps -----------------------------------------------------------------------------------

    def _sequence(self, steps: tuple[ReadStep, ...], names: Names) -> Names:
        """Follow a sequence of steps. Returns the names that are in scope after it."""
        ended = False
        for step in steps:
            if ended:
                self._findings.report("never-reached", step.path, "the flow has ended before this step")
            self._fields(step, names)
            names = self._after(step, names)
            ended = ended or (step.verb in ("done", "fail") and step.spec.when is None)
        return names

    def _fields(self, step: ReadStep, names: Names) -> None:
        for field in fields_of(step):
            self._field(field, names, step.spec.when)
        if step.undo is not None:
            undone = {**names, "result": NameInReach(0), step.name: NameInReach(0)}
            for field in fields_of(step.undo):
                self._field(field, undone, step.spec.when)
        if step.on_error:
            self._sequence(step.on_error, {**names, "error": NameInReach(0)})

    def _after(self, step: ReadStep, names: Names) -> Names:
        line = self._findings.line(step.path)
        if isinstance(step.spec, SetSpec):
            return {**names, **{name: NameInReach(line, step.spec.when) for name in step.spec.set}}
        if isinstance(step.spec, EachSpec):
            self._sequence(step.steps, {**names, step.spec.as_: NameInReach(line)})
        made = dict(names)
        if step.verb == "together":
            for inner in step.steps:
                made |= self._sequence((inner,), dict(names))
        if step.branches:
            made |= self._branches(step, names)
        if step.name:
            made[step.name] = NameInReach(line, step.spec.when)
        return made

    def _branches(self, step: ReadStep, names: Names) -> Names:
        """Names defined in every branch are in scope afterwards; those of single branches only if that branch was
        taken.
        """
        for branch in step.branches:
            if branch.when is not None:
                self._field(FieldText("expression", branch.when, (*branch.path, "when")), names)
        made = [self._sequence(branch.steps, dict(names)) for branch in step.branches]
        complete = any(branch.when is None for branch in step.branches)
        after: Names = {}
        for branch, reach in zip(step.branches, made, strict=True):
            for name in reach.keys() - names.keys():
                everywhere = complete and all(name in other for other in made)
                otherwise = NameInReach(reach[name].line, branch.when or "no other branch fits")
                after[name] = reach[name] if everywhere else otherwise
        return after

    # -- one field -------------------------------------------------------------------------------

    def _field(self, field: FieldText, names: Names, condition: str | None = None) -> None:
        for use in self._findings.parsed(field):
            if use.path[0] not in field.extra:
                self.name(use, names, field, condition)
        if field.kind == "text" and field.source.startswith("=") and not field.source.startswith("=="):
            found = "this text takes fields, and no expression: it would be sent as it stands"
            self._findings.report_in(field, 0, "text", found, "{order.id}, or set: with a name for the value, before")
        if field.kind == "expression":
            for column, found, instead in misfits(field.source, lambda path: _kind(path, names)):
                self._findings.report_in(field, column, "type", found, instead)

    def name(
        self, use: NameUse, names: Names, field: FieldText, condition: str | None = None, *, inputs_only: bool = False
    ) -> None:
        """Check that a name is in scope under the step's own condition, and that a declared input has the field.
        `inputs_only`: a key is made before there is a run.
        """
        name, written = use.path[0], ".".join(use.path)
        known = names.get(name)
        if known is None:
            if inputs_only or name not in ALWAYS:
                near = get_close_matches(name, names, 1)
                instead = f"{near[0]} (line {names[near[0]].line})" if near else f"one of {', '.join(names) or 'none'}"
                found = f"{written}: there is no step or input {name!r} here"
                self._findings.report_in(field, use.column, "unknown-name", found, instead)
            return
        if known.condition is not None and known.condition != condition and not use.optional:
            found = f"{written}: that step runs only if {known.condition}"
            instead = f"the same if, or default({written}, …)"
            self._findings.report_in(field, use.column, "used-before-done", found, instead)
        if known.fields is not None and not use.optional:
            self._declared_field(use, known.fields, field)

    def _declared_field(self, use: NameUse, fields: Mapping[str, Any], field: FieldText) -> None:
        inner: Any = fields
        for number, name in enumerate(use.path[1:], 1):
            if not isinstance(inner, dict):
                return
            if name not in inner:
                near = get_close_matches(name, inner, 1)
                instead = ".".join([*use.path[:number], near[0]]) if near else f"one of {', '.join(inner)}"
                found = f"{'.'.join(use.path[: number + 1])}: the input has no such field"
                self._findings.report_in(field, use.column, "unknown-name", found, instead)
                return
            inner = inner[name]


def _kind(path: tuple[str, ...], names: Names) -> str | None:
    """Return the declared type of an input or a field of it; None if it is not known, or may be missing."""
    known = names.get(path[0])
    if known is None:
        return None
    inner: Any = known.fields if len(path) > 1 else known.kind
    for name in path[1:]:
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    kind = read_input_type(inner) if isinstance(inner, str) else None
    return None if kind is None or kind[1] else kind[0]
