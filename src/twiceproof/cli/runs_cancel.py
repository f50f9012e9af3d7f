"""`twiceproof runs cancel`: nothing new is begun, what was done is undone."""

from __future__ import annotations

import click

from ..claims.claim import DONE, FAILED, HELD, QUEUED
from ..drive import block
from ..flows.cancel import cancel as cancel_run
from .failures import NEGATIVE
from .ledger import opened
from .output import show_json, show_text
from .run_named import named_run
from .target import Target, target_options
from .word import login_name

__all__ = ["cancel"]

EPILOG = """\b
Example:
  twiceproof runs cancel sync_order/shop:order:17 --by ann
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
"""
WORDS = {
    QUEUED: "is cancelled; a worker undoes what has an undo, or the next call.",
    HELD: "is told to stop; whoever is at it stops before the next step and undoes what has an undo.",
    FAILED: "is cancelled; nothing had to be undone.",
}


@click.command(epilog=EPILOG)
@click.argument("run")
@click.option("--by", metavar="NAME", help="Whose word this is. Default: your login name.")
@target_options
@click.pass_obj
def cancel(target: Target, run: str, by: str | None) -> None:
    """Stop a run before its next step, and have undone what it did."""
    with opened(target) as store:
        at = named_run(target, store, run)
        before = store.read(at).block().record
        state = block(cancel_run(store, at, by or login_name()))
    ended = before is not None and before.state in (DONE, FAILED)
    if target.json:
        show_json({"run": run, "state": state, "cancelled": not ended})
    else:
        show_text(f"{run} had ended before: it is {state}." if ended else f"{run} {WORDS[state]}")
    if ended:
        raise click.exceptions.Exit(NEGATIVE)
