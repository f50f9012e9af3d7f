"""`twiceproof check`: find design mistakes in flows without running them."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator

from msgspec import Struct

from ...app.app import App
from .rules import ChecklistFinding
from .search import kind_of, of_flow, of_hook, of_once, of_step

__all__ = ["ChecklistFinding", "StepRepeat", "check_app", "is_allowed", "repeats_of"]


_WORD = re.compile(r"#\s*twiceproof:\s*allow\s+([a-z, -]+)")


def is_allowed(finding: ChecklistFinding) -> bool:
    lines = (linecache.getline(finding.file, number) for number in (finding.line, finding.line - 1) if number > 0)
    return any(finding.rule in re.split(r"[\s,]+", found[1]) for line in lines if (found := _WORD.search(line)))


def check_app(app: App) -> list[ChecklistFinding]:
    """Findings in the order of the files, without those allowed by a comment.

    Reads source and declarations; runs nothing.
    """
    found = dict.fromkeys(finding for finding in _findings(app) if not is_allowed(finding))
    return sorted(found, key=lambda finding: (finding.file, finding.line, finding.rule))


class StepRepeat(Struct, frozen=True):
    """How a declared step may be repeated. "" where its effect says so only when it is described."""

    step: str
    repeat: str
    undo: str


def repeats_of(app: App) -> list[StepRepeat]:
    """Return every step and effect that is declared under a name, in the order of the file."""
    return [StepRepeat(one.name, kind_of(one), "" if one.undo is None else one.undo.name) for one in app.steps]


def _findings(app: App) -> Iterator[ChecklistFinding]:
    for flow in app.flows.values():
        yield from of_flow(flow)
    for once in app.operations.values():
        yield from of_once(once)
    declared = {id(one): one for step in app.steps for one in (step, step.undo) if one is not None}
    for step in declared.values():
        yield from of_step(step, keeps_large=bool(app.settings.resources))
    for hook in app.hooks.values():
        yield from of_hook(hook)
