"""`twiceproof duplicates`: the keys with the most blocked duplicates."""

from __future__ import annotations

import click
from msgspec import Struct

from ..claims.claim import validate_name
from ..claims.duplicates import most_blocked
from ..operations import block
from .doctor import NOWHERE
from .output import moment, show_json, show_table, show_text
from .prompts import between, limit_option
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
    """One key. An empty key stands for the keys beyond the limit per process and hour, counted together."""

    blocked: int
    source: str
    operation: str
    key: str
    first_at: float
    last_at: float


@click.command("duplicates", epilog=EPILOG)
@click.option("--flow", metavar="NAME", default="", help="Only duplicates of this flow or operation.")
@click.option("--source", metavar="NAME", help="Only duplicates received from this source.")
@click.option("--since", metavar="TIME", help="Blocked since this time: an age (2h, 3d) or a UTC date, to the hour.")
@limit_option(20)
@target_options
@click.pass_obj
def duplicates(target: LedgerTarget, flow: str, source: str | None, since: str | None, limit: int) -> None:
    """List the keys with the most blocked duplicates."""
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
        show_text("No duplicates were blocked.")


def _shown(row: DuplicateRow) -> tuple[object, ...]:
    return (
        row.blocked,
        row.source or "-",
        row.operation,
        row.key or OTHER_KEYS,
        moment(row.first_at),
        moment(row.last_at),
    )
