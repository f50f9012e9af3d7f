"""`twiceproof check`: checks the source of an app's flows against the design checklist, without running them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .output import NEGATIVE, OK, counted, show_json, show_text
from .target import LedgerTarget, json_option

if TYPE_CHECKING:
    from ..prove.checklist import ChecklistFinding

__all__ = ["check"]


EPILOG = """\b
Examples:
  twiceproof check shop:app
  twiceproof check shop:app --json
To accept a line as it is, add: # twiceproof: allow missing-undo
Exit codes: 0 no findings, 1 findings.
"""


@click.command(epilog=EPILOG)
@click.argument("app", metavar="MODULE:APP")
@json_option
@click.pass_context
def check(ctx: click.Context, app: str) -> None:
    """Check the source of flows for what is unsafe to repeat.

    The rules are about keys, steps, their order, undo and retention. The module is imported, as a worker imports it;
    no flow and no step is called.
    """
    from ..prove.checklist import check_app  # a late import: `check --help` does not need it
    from .load import load_app

    with load_app(app) as found:
        findings = check_app(found)
        flows, guarded = len(found.flows), len(found.operations)
    if ctx.ensure_object(LedgerTarget).json:
        show_json({"app": app, "flows": flows, "guarded_functions": guarded, "findings": findings})
    else:
        _show(findings, counted(flows, "flow") + (f" and {counted(guarded, 'guarded function')}" if guarded else ""))
    ctx.exit(NEGATIVE if findings else OK)


def _show(findings: Sequence[ChecklistFinding], read: str) -> None:
    for one in findings:
        show_text(f"{_near(one.file)}:{one.line}: {one.rule}: {one.where}: {one.found}")
        show_text(f"    Why: {one.why}\n    Instead: {one.instead}\n")
    show_text(f"Checked {read}: {counted(len(findings), 'finding') if findings else 'no findings'}.")


def _near(file: str) -> str:
    """Return the path relative to the current directory, if the file is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
