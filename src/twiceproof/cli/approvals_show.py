"""`twiceproof approvals show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from ..drive import block
from ..flows.waits.approval import OPEN, Approval
from ..flows.waits.approvals import look_up
from .approval_named import APPROVAL_HELP, named_approval
from .ledger import opened
from .output import show_json, show_pairs, show_text
from .shell import command
from .span import moment
from .target import Target, target_options

__all__ = ["decision_words", "show"]

EPILOG = f"""\b
Examples:
  twiceproof approvals show sync_order/shop:order:17
  twiceproof approvals show apr_ZGVmYXVsd… --json
{APPROVAL_HELP}
"""


@click.command(epilog=EPILOG)
@click.argument("approval")
@target_options
@click.pass_obj
def show(target: Target, approval: str) -> None:
    """Show what is asked, what is shown, and how to decide."""
    with opened(target) as store:
        found = block(look_up(store, named_approval(target, store, approval)))
    moves = list(_next_moves(target, found))
    if target.json:
        show_json({"approval": found, "next": [move for _, move in moves]})
        return
    show_pairs(list(_pairs(found)))
    for why, move in moves:
        show_text(f"\n{why}\n  {move}")


def _pairs(found: Approval) -> Iterator[tuple[str, Any]]:
    yield "flow", found.flow
    yield "key", found.key
    yield "name", found.name
    yield "run", found.run
    yield "state", found.state
    yield "asked", moment(found.asked_at) + (f", by {found.requester}" if found.requester else "")
    yield "until", moment(found.until)
    yield "shown", msgspec.json.format(msgspec.json.encode(found.shown), indent=2).decode()
    yield "digest", found.digest
    if found.decision is not None:
        yield "decision", decision_words(found)


def decision_words(found: Approval) -> str:
    if found.decision is None:
        return "nobody decided in time"
    word = "approved" if found.decision.approved else "rejected"
    who = f"{word}, by {found.decision.by or 'nobody'}, {moment(found.decision.at)}"
    return f"{who}: {found.decision.note}" if found.decision.note else who


def _next_moves(target: Target, found: Approval) -> Iterator[tuple[str, str]]:
    """Why, and what to type. The digest makes sure that the decision is about what was looked at."""
    if found.state != OPEN:
        return
    yield "To say yes:", command(target, "approvals", "approve", found.id, "--shown", found.digest)
    yield "To say no:", command(target, "approvals", "reject", found.id, "--shown", found.digest, "--note", "WHY")
