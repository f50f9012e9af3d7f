"""`twiceproof hooks letters`: deliveries that were believed but could not be taken in."""

from __future__ import annotations

from typing import Any

import click

from ..claims.claim import validate_name
from ..doors.letters import Letter
from ..doors.letters import letters as kept_letters
from ..drive import block
from .ledger import opened
from .output import show_json, show_table, show_text
from .span import moment
from .target import Target, target_options

__all__ = ["letters"]

HEAD = ("LETTER", "WEBHOOK", "RECEIVED", "BYTES", "WHY")
EPILOG = """\b
Examples:
  twiceproof hooks letters
  twiceproof hooks letters --hook stripe --json
"""


@click.command(epilog=EPILOG)
@click.option("--hook", metavar="NAME", default="", help="Only those of this webhook.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@target_options
@click.pass_obj
def letters(target: Target, hook: str, limit: int) -> None:
    """List what was kept aside, the newest first. It is kept for 30 days."""
    with opened(target) as store:
        found = block(kept_letters(store, validate_name("tenant", target.tenant), hook))
    if target.json:
        show_json({"letters": [_shape(letter) for letter in found[:limit]], "more": len(found) > limit})
        return
    if not found:
        show_text("Nothing was kept aside.")
        return
    show_table(HEAD, [(x.id, x.hook, moment(x.received_at), x.size, _why(x)) for x in found[:limit]])
    if len(found) > limit:
        show_text(f"There are {len(found) - limit} more; say --limit {limit * 10}.")
    show_text("When what stood in the way is gone: twiceproof hooks replay MODULE:APP LETTER")


def _why(letter: Letter) -> str:
    return f"{letter.reason} ({len(letter.meant):,} events)" if len(letter.meant) > 1 else letter.reason


def _shape(letter: Letter) -> dict[str, Any]:
    """Without its body: it may hold what is nobody's business."""
    return {
        "id": letter.id,
        "hook": letter.hook,
        "events": letter.meant,
        "reason": letter.reason,
        "received_at": letter.received_at,
        "size": letter.size,
        "digest": letter.digest,
        "can_be_replayed": letter.is_whole,
    }
