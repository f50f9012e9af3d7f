"""`twiceproof acts list`: who settled, retried, cancelled, released, replayed, forked or decided what."""

from __future__ import annotations

import click

from ..claims.acts import ActShape, list_acts
from ..claims.claim import validate_name
from ..operations import block
from .output import moment, show_json, show_table, show_text
from .prompts import after_option, limit_option
from .target import LedgerTarget, opened, target_options

__all__ = ["acts", "list_"]


HEAD = ("WHEN", "WHO", "DID", "OPERATION", "KEY", "WHAT")

LIST_EPILOG = """\b
Examples:
  twiceproof acts list
  twiceproof acts list --by ann
  twiceproof acts list --operation sync_order --key shop:order:17 --json
Acts are kept for a year, even after the run or claim has been deleted.
"""


@click.command("list", epilog=LIST_EPILOG)
@click.option("--by", metavar="NAME", default="", help="Only what this person did.")
@click.option("--operation", metavar="NAME", default="", help="Only about this flow or operation.")
@click.option("--key", default="", help="Only about this key.")
@limit_option()
@after_option
@target_options
@click.pass_obj
def list_(target: LedgerTarget, by: str, operation: str, key: str, limit: int, after: str | None) -> None:
    """List changes that people made, newest first."""
    tenant = validate_name("tenant", target.tenant)
    with opened(target) as store:
        page = block(list_acts(store, tenant, by=by, operation=operation, key=key, limit=limit, after=after))
    if target.json:
        show_json(page)
        return
    if page.acts:
        show_table(HEAD, [_row(act) for act in page.acts])
    else:
        show_text("No changes by hand are recorded.")
    if page.after is not None:
        show_text(f"Next page: repeat the command with --after {page.after}")


def _row(act: ActShape) -> tuple[str, ...]:
    what = ", ".join(part for part in (act.said, act.step, act.note) if part)
    return moment(act.at), act.by, act.verb, act.operation, act.key, what or "-"


@click.group()
def acts() -> None:
    """List changes that people made by hand."""


acts.add_command(list_)
