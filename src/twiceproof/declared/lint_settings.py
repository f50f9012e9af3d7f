"""Checks the settings of a file: what its inputs are called, how long things are kept, and the texts beside its key
that say of which object an event is, and which runs share a limit.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec import structs

from ..errors import Misuse
from ..flows.limits import make_rate
from ..keys.duration import lifetime, seconds
from .expression import CONSTANTS
from .findings import LintFindings
from .lint_names import Names, NamesCheck
from .model import FlowFile
from .names import FieldText
from .nodes import Path

__all__ = ["SettingsCheck"]


RESERVED = frozenset({*keyword.kwlist, *CONSTANTS})


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
