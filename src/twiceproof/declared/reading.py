"""Reads a flow file into its types, each step by its verb and with its path in the file; collects the problems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..errors import Misuse
from .model import (
    NAME_PATTERN,
    VERBS,
    ActingSpec,
    BranchSpec,
    ChooseSpec,
    EachSpec,
    FlowFile,
    StepSpec,
    SubflowSpec,
    TogetherSpec,
    names_of,
    verbs_in,
)
from .nodes import Document, LintProblem, Path, Place, parse

__all__ = ["BranchSteps", "ReadFlow", "ReadStep", "called_flows", "read_flow", "walk"]


T = TypeVar("T", bound=Struct)
_PATH = re.compile(r" - at `\$?([^`]*)`$")
_MISSING = re.compile(r"missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected `([a-z |]+)`, got `([a-z]+)`")
_PART = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


class ReadStep(Struct, frozen=True):
    """One step of a file: its verb, its fields, its place, and the steps in it."""

    verb: str
    spec: StepSpec
    path: Path
    steps: tuple[ReadStep, ...] = ()  # of `each` and `together`
    branches: tuple[BranchSteps, ...] = ()  # of `choose`
    undo: ReadStep | None = None
    on_error: tuple[ReadStep, ...] = ()  # what follows its final failure

    @property
    def name(self) -> str:
        """Its name: given, or for a wait or an approval the name of the wait."""
        own = getattr(self.spec, self.verb, "") if self.verb in ("wait", "approve") else ""
        return self.spec.step or str(own)


class BranchSteps(Struct, frozen=True):
    """One branch of `choose`: its condition, None for `else`, and its steps."""

    when: str | None
    steps: tuple[ReadStep, ...]
    path: Path


class ReadFlow(Struct, frozen=True):
    """A file that was read: its types as far as they fit, and all problems of its form."""

    document: Document
    file: FlowFile | None
    steps: tuple[ReadStep, ...]
    on_error: tuple[ReadStep, ...]
    problems: tuple[LintProblem, ...]


def read_flow(text: str) -> ReadFlow:
    """Read a flow file. Raises nothing for a wrong file: see its problems."""
    document = parse(text)
    reader = _FlowReader(document)
    if not isinstance(document.data, dict):
        if not document.problems:
            found = "a flow file is a map that begins with flow: NAME"
            reader.problems.append(LintProblem("shape", Place(), found, "flow: sync_order"))
        return ReadFlow(document, None, (), (), (*document.problems, *reader.problems))
    file = reader.typed(FlowFile, document.data, ())
    steps = reader.steps(document.data.get("steps"), ("steps",))
    on_error = reader.steps(document.data.get("on_error"), ("on_error",))
    return ReadFlow(document, file, steps, on_error, (*document.problems, *reader.problems))


def walk(steps: tuple[ReadStep, ...]) -> Iterator[ReadStep]:
    """Yield every step, including nested ones, in the order of the file. Undos come after what they undo."""
    for step in steps:
        yield step
        yield from walk(step.steps)
        for branch in step.branches:
            yield from walk(branch.steps)
        if step.undo is not None:
            yield from walk((step.undo,))
        yield from walk(step.on_error)


def called_flows(read: ReadFlow) -> list[str]:
    """Return the names of the flows that a file calls, each once."""
    steps = walk((*read.steps, *read.on_error))
    return list(dict.fromkeys(step.spec.flow for step in steps if isinstance(step.spec, SubflowSpec)))


class _FlowReader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self.problems: list[LintProblem] = []

    def _report(self, rule: str, path: Path, found: str, instead: str = "") -> None:
        self.problems.append(LintProblem(rule, self._document.place(path), found, instead))

    def steps(self, data: Any, path: Path) -> tuple[ReadStep, ...]:
        if not isinstance(data, list):
            return ()
        read = [self._step(item, (*path, number)) for number, item in enumerate(data)]
        return tuple(step for step in read if step is not None)

    def _step(self, data: Any, path: Path) -> ReadStep | None:
        if not isinstance(data, dict):
            self._report("shape", path, "a step is a map with a verb", "- step: invoice, and below it http: POST …")
            return None
        verb = self._verb(data, path)
        spec = None if verb is None else self.typed(VERBS[verb], data, path)
        if verb is None or spec is None:
            return None
        undo: ReadStep | None = None
        on_error: tuple[ReadStep, ...] = ()
        if isinstance(spec, ActingSpec):
            undo = None if spec.undo is None else self._step(spec.undo, (*path, "undo"))
            on_error = self.steps(spec.on_error, (*path, "on_error"))
        return ReadStep(verb, spec, path, self._inner(spec, path), self._branches(spec, path), undo, on_error)

    def _verb(self, data: dict[str, Any], path: Path) -> str | None:
        found = verbs_in(data)
        if len(found) == 1:
            return found[0]
        if found:
            self._report(
                "verb", (*path, found[1]), f"a step has one verb, and this one {' and '.join(found)}", "two steps"
            )
            return None
        near = next((close for name in data for close in get_close_matches(name, VERBS, 1)), "")
        named = f" {data['step']}" if isinstance(data.get("step"), str) else ""
        instead = f"{near}: …" if near else f"one of {', '.join(VERBS)}"
        self._report("verb", path, f"the step{named} has no verb", instead)
        return None

    def _inner(self, spec: StepSpec, path: Path) -> tuple[ReadStep, ...]:
        if isinstance(spec, EachSpec):
            return self.steps(spec.do, (*path, "do"))
        return self.steps(spec.together, (*path, "together")) if isinstance(spec, TogetherSpec) else ()

    def _branches(self, spec: StepSpec, path: Path) -> tuple[BranchSteps, ...]:
        if not isinstance(spec, ChooseSpec):
            return ()
        return tuple(self._branch(data, (*path, "choose", number)) for number, data in enumerate(spec.choose))

    def _branch(self, data: Any, path: Path) -> BranchSteps:
        spec = self.typed(BranchSpec, data, path) if isinstance(data, dict) else None
        if spec is None or (spec.else_ is None) == (spec.when is None or spec.do is None):
            self._report("shape", path, "a branch is {when, do}, or {else} as the last one", "- when: order.total > 0")
            return BranchSteps(None, (), path)
        if spec.else_ is not None:
            return BranchSteps(None, self.steps(spec.else_, (*path, "else")), path)
        return BranchSteps(spec.when, self.steps(spec.do, (*path, "do")), path)

    # -- types -----------------------------------------------------------------------------------

    def typed(self, kind: type[T], data: dict[str, Any], path: Path) -> T | None:
        """Convert to a type. Misfits are reported and the rest is still read, so that all errors are shown."""
        known = names_of(kind)
        for name in data.keys() - set(known):
            near = get_close_matches(name, known, 1)
            instead = f"{near[0]}:" if near else f"one of {', '.join(known)}"
            self._report("unknown-field", (*path, name), f"there is no field {name} here", instead)
        rest = {name: value for name, value in data.items() if name in known}
        while True:
            try:
                return msgspec.convert(rest, kind)
            except msgspec.ValidationError as error:
                where = self._misfit(str(error), path, data)
                if not where or where[0] not in rest:
                    return None
                del rest[str(where[0])]  # reported: continue without it, if it is optional

    def _misfit(self, said: str, path: Path, data: dict[str, Any]) -> Path:
        """Report what msgspec found, at its place. Returns the path within the value."""
        found = _PATH.search(said)
        inner: Path = ()
        if found:
            said = said[: found.start()]
            parts = _PART.findall(found[1])
            inner = tuple(int(number) if number.isdecimal() else name for name, number in parts if number != "...")
        missing = _MISSING.search(said)
        if missing is not None and not inner and missing[1] in data:
            return inner  # it is there, and does not fit: that is reported already
        at = ".".join(map(str, inner)) or ("the step" if path else "the file")
        told, instead = _in_words(said, _at(data, inner))
        self._report("shape", (*path, *inner), f"{at}: {told}", instead)
        return inner


KINDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a map",
    "null": "nothing",
}


def _in_words(said: str, value: Any) -> tuple[str, str]:
    """Return what msgspec says of a misfit in the words of those who write files, and what to write instead."""
    if (missing := _MISSING.search(said)) is not None:
        return f"{missing[1]} is missing", f"{missing[1]}: …"
    if NAME_PATTERN in said:
        made = re.sub(r"\W+", "_", str(value), flags=re.ASCII).strip("_")
        instead = made if re.fullmatch(NAME_PATTERN, made) else "sync_order"
        return "a name has letters of English, digits and _, and begins with a letter", instead
    kinds = _EXPECTED.fullmatch(said)
    if kinds is None:
        return f"{said[:1].lower()}{said[1:]}", ""
    wanted = [KINDS.get(kind, kind) for kind in kinds[1].split(" | ") if kind != "null"]
    instead = (
        f'in quotes: "{value}"' if "str" in kinds[1].split(" | ") and isinstance(value, int | float | Decimal) else ""
    )
    return f"{' or '.join(wanted)} is expected, and {KINDS.get(kinds[2], kinds[2])} stands here", instead


def _at(data: Any, path: Path) -> Any:
    for step in path:
        try:
            data = data[step]
        except (LookupError, TypeError):
            return None
    return data


def require_sound(read: ReadFlow, name: str) -> FlowFile:
    """Return the file's types. Raises Misuse with its first problems: only files without errors are compiled."""
    if read.file is None or read.problems:
        lines = [f"{name}:{p.place.line}:{p.place.column}: {p.rule}: {p.found}" for p in sorted_problems(read.problems)]
        raise Misuse("\n".join([*lines[:5], "Correct it; all of it is told by: twiceproof flows lint " + name]))
    return read.file


def sorted_problems(problems: tuple[LintProblem, ...]) -> list[LintProblem]:
    """The problems in the order of the file, each once."""
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem.place, problem.rule))
