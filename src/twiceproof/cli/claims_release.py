"""`twiceproof claims release`: forget a key, by an operator's word."""

from __future__ import annotations

import click

from ..claims.claim import RUN
from ..claims.claims import Claims
from ..claims.pieces import run_or_claim
from ..drive import block
from .claim_look import named_address, require_claim
from .claim_shape import ClaimShape, short_shape
from .confirm import confirm
from .ledger import opened
from .output import show_json, show_text
from .target import Target, target_options

__all__ = ["release"]

EPILOG = """\b
Examples:
  twiceproof claims release ship order:17
  twiceproof claims release ship order:17 --force --yes
If you know what happened, settle the claim instead: that leaves a trace.
"""


@click.command(epilog=EPILOG, short_help="Forget a claim and its result.")
@click.argument("operation")
@click.argument("key")
@click.option("--force", is_flag=True, help="Even if somebody holds it: its work may then be done twice.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")
@target_options
@click.pass_obj
def release(target: Target, operation: str, key: str, force: bool, yes: bool) -> None:
    """Forget a claim and its result: the next delivery does the work again."""
    at = named_address(target.tenant, operation, key)
    with opened(target) as store:
        found = block(run_or_claim(store, at.space))
        record = require_claim(target, found)
        confirm(_question(short_shape(record, found.now), is_run=record.at.kind == RUN), yes=yes)
        released = block(Claims(store).free(record.at, force=force))
    if target.json:
        show_json({"released": released, "operation": operation, "key": key, "tenant": target.tenant})
    else:
        show_text(f"{operation} {key} is forgotten; the next delivery does the work.")


def _question(claim: ClaimShape, *, is_run: bool) -> str:
    steps = ": it is a run, and all its steps act again, also those declared never to be repeated" if is_run else ""
    return f"Forget {claim.operation} {claim.key}, which is {claim.word}? The next delivery does its work again{steps}"
