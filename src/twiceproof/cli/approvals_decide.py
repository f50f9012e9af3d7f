"""`twiceproof approvals approve`, `reject` and `decide`: a person's word, given once."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import click

from ..drive import Operation, block
from ..flows.waits.approval import Approval, Decided
from ..flows.waits.approvals import decide as decide_approval
from ..flows.waits.approvals import look_up
from ..keys import validate_key
from ..stores.base import Store
from .approval_named import APPROVAL_HELP, named_approval
from .approvals_show import decision_words
from .failures import NEGATIVE
from .ledger import opened
from .output import show_json, show_text
from .target import Target, target_options
from .word import login_name

__all__ = ["approve", "decide", "reject"]

SHOWN_HELP = "Only if this is the digest of what is asked, as `show` tells it; another is refused."

EPILOG = """\b
Examples:
  twiceproof approvals {word} sync_order/shop:order:17
  twiceproof approvals {word} apr_ZGVmYXVsd… --shown 1:9f86d0… --note "asked the customer"
{help}
If somebody decided otherwise before, that stands, and the exit code is 1.
"""

DECIDE_EPILOG = """\b
Examples:
  twiceproof approvals decide sync_order/shop:order:17 reject --note "too much"
  twiceproof approvals decide apr_ZGVmYXVsd… approve --shown 1:9f86d0…
{help}
If somebody decided otherwise before, that stands, and the exit code is 1.
"""


def _deciding(function: Callable[..., None]) -> Callable[..., None]:
    """What both commands take."""
    for option in (
        click.option("--shown", metavar="DIGEST", default="", help=SHOWN_HELP),
        click.option("--note", default="", metavar="TEXT", help="Why: kept with the decision."),
        click.option("--by", metavar="NAME", help="Whose word this is. Default: your login name."),
        click.argument("approval"),
    ):
        function = option(function)
    return target_options(function)


@click.command(epilog=EPILOG.format(word="approve", help=APPROVAL_HELP))
@_deciding
@click.pass_obj
def approve(target: Target, approval: str, by: str | None, note: str, shown: str) -> None:
    """Say yes: the run goes on."""
    _decide(target, approval, approved=True, by=by, note=note, shown=shown)


@click.command(
    epilog=EPILOG.format(word="reject", help=APPROVAL_HELP), short_help="Say no: the run undoes what it did."
)
@_deciding
@click.pass_obj
def reject(target: Target, approval: str, by: str | None, note: str, shown: str) -> None:
    """Say no: the run undoes what it did, unless its flow takes another way."""
    _decide(target, approval, approved=False, by=by, note=note, shown=shown)


@click.command(epilog=DECIDE_EPILOG.format(help=APPROVAL_HELP))
@click.argument("approval")
@click.argument("word", type=click.Choice(["approve", "reject"]))
@click.option("--shown", metavar="DIGEST", default="", help=SHOWN_HELP)
@click.option("--note", default="", metavar="TEXT", help="Why: kept with the decision.")
@click.option("--by", metavar="NAME", help="Whose word this is. Default: your login name.")
@target_options
@click.pass_obj
def decide(target: Target, approval: str, word: str, by: str | None, note: str, shown: str) -> None:
    """Say yes or no, in one command: for scripts."""
    _decide(target, approval, approved=word == "approve", by=by, note=note, shown=shown)


def _decide(target: Target, approval: str, *, approved: bool, by: str | None, note: str, shown: str) -> None:
    words = {"approved": approved, "by": validate_key(by or login_name()), "note": note, "shown": shown}
    with opened(target) as store:
        told, found = block(_decide_and_look(store, named_approval(target, store, approval), words))
    agreed = told.decision is not None and told.decision.approved is approved
    if target.json:
        show_json({"first": told.first, "approval": found})
    else:
        before = "" if told.first else "too late, "
        show_text(f"{found.flow} {found.key}, {found.name}: {before}{decision_words(found)}")
    if not agreed:
        raise click.exceptions.Exit(NEGATIVE)


def _decide_and_look(store: Store, approval: str, words: dict[str, Any]) -> Operation[tuple[Decided, Approval]]:
    told = yield from decide_approval(store, approval, mark=secrets.token_hex(8), **words)
    found = yield from look_up(store, approval)
    return told, found
