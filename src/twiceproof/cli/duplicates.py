"""`twiceproof duplicates`: the keys with most blocked repeats."""

from __future__ import annotations

import click
from msgspec import Struct

from ..claims.claim import validate_name
from ..claims.duplicates import most_blocked
from ..operations import block
from .doctor import NOWHERE
from .output import moment, show_json, show_table, show_text
from .prompts import between
from .target import LedgerTarget, opened, target_options

__all__ = ["duplicates"]


HEAD = ("BLOCKED", "SOURCE", "OPERATION", "KEY", "FIRST", "LAST")
OTHER_KEYS = "(other keys)"

EPILOG = """\b
Examples:
  twiceproof duplicates
  twiceproof duplicates --source stripe --since 2h
  twiceproof duplicates --flow sync_order --limit 5 --json
"""


class DuplicateRow(Struct, frozen=True):
    """One key, as it is shown. An empty key stands for those beyond the bound, counted together."""

    blocked: int
    source: str
    operation: str
    key: str
    first_at: float
    last_at: float


@click.command("duplicates", epilog=EPILOG, short_help="The keys with most blocked repeats.")
@click.option("--flow", metavar="NAME", default="", help="Only repeats of this flow or operation.")
@click.option("--source", metavar="NAME", help="Only repeats that came in through this source.")
@click.option("--since", metavar="TIME", help="Blocked since: so long ago (2h, 3d), or a date, to the hour.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@target_options
@click.pass_obj
def duplicates(target: LedgerTarget, flow: str, source: str | None, since: str | None, limit: int) -> None:
    """List the keys with most blocked repeats: how often each came again and was answered without doing the work."""
    tenant = validate_name("tenant", target.tenant)
    with opened(target) as store:
        begin, _ = between(since, None, store.read(NOWHERE).block().now)
        found = block(most_blocked(store, tenant, operation=flow, source=source, since=begin or 0.0, limit=limit))
    rows = [DuplicateRow(b.count, b.source, b.operation, b.key, b.first_at, b.last_at) for b in found]
    if target.json:
        show_json({"duplicates": rows})
    elif rows:
        show_table(HEAD, [_shown(row) for row in rows])
    else:
        show_text("No repeats were blocked.")


def _shown(row: DuplicateRow) -> tuple[object, ...]:
    return (
        row.blocked,
        row.source or "-",
        row.operation,
        row.key or OTHER_KEYS,
        moment(row.first_at),
        moment(row.last_at),
    )
