"""What is wrong with a flow file, at its line and column: undefined names, steps without a declared repeat, keys that
change, steps in a dangerous order.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec import structs

from ..errors import Misuse
from ..flows.limits import make_rate
from ..keys.duration import lifetime, seconds
from .connections import Connections
from .expression import CONSTANTS
from .findings import LintFindings
from .lint_names import Names, NamesCheck
from .lint_steps import StepsCheck
from .lint_triggers import TriggersCheck, source_name, source_options
from .model import FlowFile
from .names import INPUT_TYPES, FieldText, read_input_type
from .nodes import LintProblem, Path
from .reading import ReadFlow, sorted_problems

__all__ = ["INPUT_TYPES", "RULES", "lint", "read_input_type", "source_name", "source_options"]


RESERVED = frozenset({*keyword.kwlist, *CONSTANTS})
_SECRET = re.compile(
    r"\b(sk_live_|rk_live_|xox[abp]-|ghp_|github_pat_|glpat-|whsec_|AKIA[0-9A-Z]{8}|eyJ[\w-]{10,}\.)\S*"
    r"|(-----BEGIN [A-Z ]*PRIVATE KEY-----)"
)


def lint(read: ReadFlow, connections: Connections | None = None) -> list[LintProblem]:
    """Return everything that is wrong with a file, in the order of its lines."""
    findings = LintFindings(read.document)
    _secrets(read.document.data, (), findings)
    file = read.file
    if file is not None:
        names_check = NamesCheck(read, file, findings)
        names = names_check.run()
        StepsCheck(read, file, findings, connections).run()
        SettingsCheck(file, findings).run(names, names_check)
        TriggersCheck(read, file, findings, connections).run(names, names_check)
    return sorted_problems((*read.problems, *findings.problems))


def _secrets(data: Any, path: Path, findings: LintFindings) -> None:
    if isinstance(data, dict):
        for name, inner in data.items():
            _secrets(inner, (*path, name), findings)
    elif isinstance(data, list):
        for number, inner in enumerate(data):
            _secrets(inner, (*path, number), findings)
    elif isinstance(data, str) and (found := _SECRET.search(data)):
        instead = "put it into connections.yaml as env:NAME, and use the connection"
        findings.report("secret-in-text", path, f'"{(found[1] or found[2])[:16]}…" looks like a secret', instead)


class SettingsCheck:
    """Checks what a file says beside its steps. All of it would otherwise be refused when the flow is declared, without
    a place."""

    def __init__(self, file: FlowFile, findings: LintFindings) -> None:
        self._file = file
        self._findings = findings

    def run(self, names: Names, names_check: NamesCheck) -> None:
        for name in RESERVED & self._file.input.keys():
            found = f"{name} is a word of the expressions, and cannot be the name of an input"
            self._findings.report("shape", ("input", name), found, f"{name}_value, or a map with a field {name}")
        for path, text in self._texts():
            known = len(self._findings.problems)
            field = FieldText("text", text, path)
            for use in self._findings.parsed(field):
                names_check.name(use, names, field, inputs_only=True)
            if path[0] == "limit_per":  # the text is the name of the field, and not its value
                place = self._findings.document.place(path)
                self._findings.problems[known:] = [
                    structs.replace(one, place=place) for one in self._findings.problems[known:]
                ]
        for number, text in enumerate(self._file.ignore):
            if text.partition(".")[0] not in names:
                found = f"{text}: there is no input {text.partition('.')[0]!r}"
                instead = f"one of {', '.join(names)}, or a field of it"
                self._findings.report("unknown-name", ("ignore", number), found, instead)
        for path, value, read in self._read():
            try:
                read(value)
            except Misuse as error:
                found, _, instead = str(error).partition("; ")
                self._findings.report("type", path, found, instead)

    def _texts(self) -> Iterator[tuple[Path, str]]:
        """The texts that read the inputs, and nothing else. The key has its own check."""
        for text in self._file.limit_per or ():
            yield ("limit_per", text), text
        if self._file.order is not None:
            yield ("order", "object"), self._file.order.object
            yield ("order", "version"), self._file.order.version

    def _read(self) -> Iterator[tuple[Path, Any, Callable[[Any], Any]]]:
        for name in ("keep", "keep_history", "keep_failed"):
            if (value := getattr(self._file, name)) is not None:
                yield (name,), value, partial(lifetime, name=name)
        yield ("lease",), self._file.lease, partial(seconds, name="lease")
        if self._file.rate is not None:
            yield ("rate",), self._file.rate, make_rate


RULES: dict[str, str] = {
    "yaml": "YAML reads the line differently than it looks.",
    "unquoted-braces": "YAML reads braces at the beginning of a value as a map, so the field would be lost.",
    "duplicate-key": "If two fields have the same name, YAML silently keeps the second.",
    "shape": "This part does not have the form that the grammar requires.",
    "verb": "A step does one thing: its verb says which.",
    "unknown-field": "A misspelt option would have no effect.",
    "unknown-name": "A misspelt name would be an empty text in a mail or an address.",
    "used-before-done": "The step may not have run, so its result may not be there.",
    "type": "The two can never fit, or the value is not what the field takes.",
    "expression": "The expression cannot be read.",
    "text": "The text cannot be read.",
    "key": "The key cannot be read.",
    "unit-of-work": "Every event has the same key, so the second order is taken for a repeat of the first.",
    "unstable-key": "A retry makes another key, and the work is done twice.",
    "undeclared-step": "If no answer comes, it must be known whether the step may be repeated.",
    "probe-acts": "A look that changes something would do the work a second time.",
    "dangerous-before-safe": "If a later step fails, the effect has already happened and cannot be undone.",
    "missing-undo": "If the flow fails afterwards, the step's effect stays.",
    "secret-in-text": "Many people can read the file, and its releases are stored.",
    "unknown-connection": "The step would have no destination.",
    "unknown-function": "The function cannot be called here.",
    "missing-part": "The step cannot be carried out here.",
    "request": "The request cannot be read.",
    "unique-index": "Without it, two callers at once would both insert the row.",
    "sql": "A value in the text of a statement could change the statement.",
    "command": "What an event brings could be run on the other machine.",
    "trigger": "The flow would never start, or would start for any event.",
    "short-keep": "A sender that tries again later would start the work a second time.",
    "each-without-id": "An item that moves in the list would be mistaken for another one.",
    "unnamed-step": "The ledger finds a step again by its name.",
    "duplicate-name": "Two steps with one name would share one entry in the ledger.",
    "done": "The other branches would continue.",
    "never-reached": "The step would never run.",
    "on-error": "The steps after a final failure end the run.",
    "test": "The test cannot be run.",
    "no-test": "Without a test it is not known whether the flow is safe to repeat.",
    "connection": "The connection cannot be used.",
}
