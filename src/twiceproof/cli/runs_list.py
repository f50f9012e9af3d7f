"""`twiceproof runs list`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..claims.claim import FAILED, validate_name
from ..drive import block
from ..flows.history.runs import ALL, EVERY_STATE, OPEN_STATES, Filter, RunPage, list_runs
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
  twiceproof runs list
  twiceproof runs list --flow sync_order --state failed --since 2h
  twiceproof runs list --prefix shop:order: --state all --json
"""


@click.command("list", epilog=EPILOG, short_help="List runs: what is not done, reviews first.")
@click.option("--flow", metavar="NAME", default="", help="Only runs of this flow.")
@click.option(
    "--state",
    type=click.Choice([*EVERY_STATE, ALL]),
    help="Only runs in this state. Default: all but done, those in review first.",
)
@click.option("--key", metavar="KEY", default="", help="Only runs with exactly this key.")
@click.option("--prefix", metavar="TEXT", default="", help="Only runs whose key begins like this.")
@time_options[0]
@time_options[1]
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="CURSOR", help="Go on where an earlier answer ended.")
@target_options
@click.pass_obj
def list_(
    target: Target, flow: str, state: str | None, key: str, prefix: str, since: str | None, until: str | None,
    limit: int, after: str | None,
) -> None:  # fmt: skip
    """List runs: what is not done, reviews first; done ones if asked for."""
    tenant = validate_name("tenant", target.tenant)
    states = EVERY_STATE if state == ALL else (state,) if state else (*OPEN_STATES, FAILED)
    with opened(target) as store:
        times = between(since, until, store.read(NOWHERE).block().now)
        which = Filter(tenant, flow and validate_name("flow", flow), key, prefix, *times)
        page = block(list_runs(store, which, states, limit=limit, after=after))
    if target.json:
        show_json(page)
    else:
        given = {"--flow": flow, "--key": key, "--prefix": prefix, "--since": since, "--until": until}
        _show(target, page, state, [word for name, value in given.items() if value for word in (name, value)])


def _show(target: Target, page: RunPage, state: str | None, asked: Sequence[str]) -> None:
    if page.runs:
        show_runs(page.runs)
        first = page.runs[0]
        show_text(f"Look at one: {command(target, 'runs', 'show', about=(f'{first.flow}/{first.key}',))}")
    else:
        show_text("No runs." if state else "No runs that are not done.")
    if page.after is not None:
        show_text(f"There is more; say the same again with: --after {page.after}")
    if state is None:
        show_text(f"Done ones are not shown: {command(target, 'runs', 'list', *asked, '--state', 'done')}")
