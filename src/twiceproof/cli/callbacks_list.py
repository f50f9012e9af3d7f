"""`twiceproof callbacks list`."""

from __future__ import annotations

import click

from ..claims.claim import validate_name
from ..drive import block
from ..flows.waits.handed_out import HandedOut, handed_out
from .ledger import opened
from .output import show_json, show_table, show_text
from .shell import command
from .span import moment
from .target import Target, target_options

__all__ = ["list_"]

HEAD = ("FLOW", "KEY", "NAME", "STATE", "HANDED OUT")

EPILOG = """\b
Examples:
  twiceproof callbacks list
  twiceproof callbacks list --flow take_payment --all --json
"""


@click.command("list", epilog=EPILOG)
@click.option("--flow", default="", metavar="NAME", help="Only callbacks of this flow.")
@click.option("--all", "ended", is_flag=True, help="Also those that arrived, or came too late.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@target_options
@click.pass_obj
def list_(target: Target, flow: str, ended: bool, limit: int) -> None:
    """List the callbacks that runs have handed out. Their tokens are known to nobody but who was given them."""
    tenant, name = validate_name("tenant", target.tenant), flow and validate_name("flow", flow)
    with opened(target) as store:
        found = block(handed_out(store, tenant, flow=name, ended=ended, limit=limit + 1))
    if target.json:
        show_json({"callbacks": found[:limit], "more": len(found) > limit})
    else:
        _show(target, found, limit)


def _show(target: Target, found: list[HandedOut], limit: int) -> None:
    if not found:
        waiting = command(target, "runs", "list", "--state", "waiting")
        show_text(f"No callback that was handed out is waited for. Runs that wait for something else: {waiting}")
        return
    shown = found[:limit]
    show_table(HEAD, [(c.flow, c.key, c.name, c.state, moment(c.handed_out_at)) for c in shown])
    if len(found) > limit:
        show_text(f"There is more: {command(target, 'callbacks', 'list', '--limit', str(limit * 10))}")
    by_hand = command(target, "callbacks", "deliver", f"{shown[0].flow}/{shown[0].key}", shown[0].name)
    show_text(f"Deliver one by hand: {by_hand} --payload JSON")
