"""`twiceproof claims list`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any

import click

from ..claims.claim import validate_name
from ..drive import block
from .claim_list import EVERY_STATE, OPEN_STATES, ClaimPage, list_claims
from .clean import clean
from .ledger import opened
from .output import show_json, show_table, show_text
from .shell import command
from .span import span
from .target import Target, target_options

__all__ = ["list_"]

HEAD = ("OPERATION", "KEY", "STATE", "ATTEMPT", "OWNER", "AGE", "LEASE LEFT", "RUN")
LESS = ("RUN", "OWNER")  # left out, in this order, where a terminal is too narrow: `claims show` has them
GAP = 3  # between two columns, at most

EPILOG = """\b
Examples:
  twiceproof claims list
  twiceproof claims list --state review
  twiceproof claims list --operation ship --state all --json
"""


@click.command("list", epilog=EPILOG, short_help="List claims: what is not done, reviews first.")
@click.option("--operation", metavar="NAME", help="Only claims of this operation.")
@click.option(
    "--state",
    type=click.Choice([*EVERY_STATE, "all"]),
    help="Only claims in this state. Default: all but done, those in review first.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="CURSOR", help="Go on where an earlier answer ended.")
@target_options
@click.pass_obj
def list_(target: Target, operation: str | None, state: str | None, limit: int, after: str | None) -> None:
    """List claims: what is not done, reviews first; done ones if asked for."""
    prefix = f"{validate_name('tenant', target.tenant)}/"
    if operation is not None:
        prefix += f"{validate_name('operation', operation)}/"
    states = EVERY_STATE if state == "all" else (state,) if state else OPEN_STATES
    with opened(target) as store:
        page = block(list_claims(store, states, prefix, limit=limit, after=after))
    if target.json:
        show_json(page)
    else:
        _show(target, page, state, operation, limit)


def _show(target: Target, page: ClaimPage, state: str | None, operation: str | None, limit: int) -> None:
    if page.claims:
        rows = [
            (c.operation, c.key, c.word, c.attempt, c.owner, span(c.age), span(c.lease_left), c.run)
            for c in page.claims
        ]
        show_table(*_fitting(HEAD, rows))
    else:
        show_text("No claims." if state else "No claims that are not done.")
    same = ["--operation", operation] if operation else []
    if page.after is not None:
        chosen = [*(["--state", state] if state else []), "--limit", str(limit)]
        show_text(f"There is more: {command(target, 'claims', 'list', *same, *chosen, '--after', page.after)}")
    if state is None:
        show_text(f"Done ones are not shown: {command(target, 'claims', 'list', *same, '--state', 'done')}")


def _fitting(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Whole lines on a terminal: folded into three or four each, a list can no longer be read down. Pipes get all."""
    columns = [[clean(cell) for cell in column] for column in zip(head, *rows, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name in LESS:
        if room is None or sum(GAP + max(map(len, column)) for column in columns) <= room:
            break
        columns = [column for column in columns if column[0] != name]
    head, *rows = zip(*columns, strict=True)
    return head, rows
