"""`twiceproof approvals list`."""

from __future__ import annotations

import click

from ..claims.claim import validate_name
from ..drive import block
from ..flows.waits.approval import Approval
from ..flows.waits.approvals import open_approvals
from .ledger import opened
from .output import show_json, show_table, show_text
from .shell import command
from .span import moment
from .target import Target, target_options

__all__ = ["list_"]

HEAD = ("FLOW", "KEY", "NAME", "ASKED", "UNTIL")

EPILOG = """\b
Examples:
  twiceproof approvals list
  twiceproof approvals list --flow sync_order --json
"""


@click.command("list", epilog=EPILOG)
@click.option("--flow", metavar="NAME", help="Only approvals of this flow.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@target_options
@click.pass_obj
def list_(target: Target, flow: str | None, limit: int) -> None:
    """List what waits for somebody's word."""
    prefix = f"{validate_name('tenant', target.tenant)}/"
    if flow is not None:
        prefix += f"{validate_name('flow', flow)}/"
    with opened(target) as store:
        found = block(open_approvals(store, prefix, limit + 1))
    if target.json:
        show_json({"approvals": found[:limit], "more": len(found) > limit})
    else:
        _show(target, found, limit)


def _show(target: Target, found: list[Approval], limit: int) -> None:
    if not found:
        show_text("Nothing waits for approval.")
        return
    shown = found[:limit]
    show_table(HEAD, [(a.flow, a.key, a.name, moment(a.asked_at), moment(a.until)) for a in shown])
    if len(found) > limit:
        show_text(f"There is more: {command(target, 'approvals', 'list', '--limit', str(limit * 10))}")
    show_text(f"See what one is about: {command(target, 'approvals', 'show', f'{shown[0].flow}/{shown[0].key}')}")
