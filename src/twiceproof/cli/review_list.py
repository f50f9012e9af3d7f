"""`twiceproof review list`."""

from __future__ import annotations

import click

from ..claims.claim import REVIEW, validate_name
from ..drive import block
from ..flows.history.runs import Filter, list_runs
from .checks import NOWHERE
from .ledger import opened
from .output import show_json, show_text
from .run_table import show_runs
from .shell import command
from .target import Target, target_options
from .when import between, time_options

__all__ = ["list_"]

EPILOG = """\b
Examples:
  twiceproof review list
  twiceproof review list --flow sync_order --since 2h
"""


@click.command("list", epilog=EPILOG)
@click.option("--flow", metavar="NAME", default="", help="Only runs of this flow.")
@time_options[0]
@time_options[1]
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="CURSOR", help="Go on where an earlier answer ended.")
@target_options
@click.pass_obj
def list_(
    target: Target, flow: str, since: str | None, until: str | None, limit: int, after: str | None
) -> None:  # fmt: skip
    """List runs that wait for a person. Claims of guarded functions: `claims list --state review`."""
    tenant = validate_name("tenant", target.tenant)
    with opened(target) as store:
        times = between(since, until, store.read(NOWHERE).block().now)
        which = Filter(tenant, flow and validate_name("flow", flow), "", "", *times)
        page = block(list_runs(store, which, (REVIEW,), limit=limit, after=after))
    if target.json:
        show_json(page)
        return
    if not page.runs:
        show_text("No runs in review.")
        return
    show_runs(page.runs)
    first = page.runs[0]
    show_text(f"Look at one: {command(target, 'review', 'show', about=(f'{first.flow}/{first.key}',))}")
    if page.after is not None:
        show_text(f"There is more; say the same again with: --after {page.after}")
