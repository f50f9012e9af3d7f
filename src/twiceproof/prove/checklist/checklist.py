"""Goes through an app: its flows, its guarded functions, its steps, its webhooks."""

from __future__ import annotations

from collections.abc import Iterator

from ...app import App
from .allowed import is_allowed
from .finding import Finding
from .rules import of_flow, of_hook, of_once, of_step

__all__ = ["check_app"]


def check_app(app: App) -> list[Finding]:
    """In the order of the files, without what is allowed there. Reads source and declarations; runs nothing."""
    found = dict.fromkeys(finding for finding in _findings(app) if not is_allowed(finding))
    return sorted(found, key=lambda finding: (finding.file, finding.line, finding.rule))


def _findings(app: App) -> Iterator[Finding]:
    for flow in app.flows.values():
        yield from of_flow(flow)
    for once in app.operations.values():
        yield from of_once(once)
    declared = {id(one): one for step in app.steps for one in (step, step.undo) if one is not None}
    for step in declared.values():
        yield from of_step(step)
    for hook in app.hooks.values():
        yield from of_hook(hook)
