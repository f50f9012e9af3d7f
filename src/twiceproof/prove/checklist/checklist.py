"""Goes through an app: its flows, the steps they call, its webhooks."""

from __future__ import annotations

from collections.abc import Iterator

from ...app import App
from ...flows.step import Step
from .allowed import is_allowed
from .finding import Finding
from .rules import of_flow, of_hook, of_step, steps_in

__all__ = ["check_app"]


def check_app(app: App) -> list[Finding]:
    """In the order of the files, without what is allowed there. Reads source and declarations; runs nothing."""
    found = dict.fromkeys(finding for finding in _findings(app) if not is_allowed(finding))
    return sorted(found, key=lambda finding: (finding.file, finding.line, finding.rule))


def _findings(app: App) -> Iterator[Finding]:
    steps: dict[int, Step] = {}
    for flow in app.flows.values():
        yield from of_flow(flow)
        steps.update((id(step), step) for _, step in steps_in(flow))
    for step in steps.values():
        yield from of_step(step)
        if step.undo is not None and id(step.undo) not in steps:
            yield from of_step(step.undo)
    for hook in app.hooks.values():
        yield from of_hook(hook)
