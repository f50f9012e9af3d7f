"""`twiceproof runs fork`: the same input under a new key."""

from __future__ import annotations

import click

from ..drive import block
from ..flows.history.fork import Forked, fork_run, plan_fork
from .confirm import confirm
from .ledger import opened
from .output import show_json, show_text
from .run_named import named_run
from .target import Target, target_options

__all__ = ["fork"]

EPILOG = """\b
Examples:
  twiceproof runs fork sync_order/shop:order:17 --key shop:order:17:again
  twiceproof runs fork sync_order/shop:order:17 --key shop:order:17:b --from ship
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
A fork is something new: its steps act again,
with effect keys of their own, also those declared never to be repeated.
"""


@click.command(epilog=EPILOG, short_help="Start a run's input once more, under a new key.")
@click.argument("run")
@click.option("--key", required=True, metavar="KEY", help="The new run's key; one that is not there yet.")
@click.option(
    "--from",
    "step",
    default="",
    metavar="STEP",
    help="Take as done what was done before this step came to its end, with the results it had.",
)
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")
@target_options
@click.pass_obj
def fork(target: Target, run: str, key: str, step: str, yes: bool) -> None:
    """Start a run's input once more under a new key; the first run stays as it is."""
    with opened(target) as store:
        at = named_run(target, store, run)
        plan = block(plan_fork(store, at, key, step))
        if plan.again:
            confirm(_question(plan), yes=yes)
        plan = block(fork_run(store, at, key, step))
    if target.json:
        show_json({"forked": {"run": plan.run, "key": plan.key, "kept": plan.kept, "again": plan.again}})
    else:
        kept = f" {', '.join(plan.kept)} taken as done." if plan.kept else ""
        show_text(f"{plan.run} is queued under {plan.key}.{kept} A worker goes on with it.")


def _question(plan: Forked) -> str:
    return f"Start it as something new, {plan.key}? These act once more: {', '.join(plan.again)}"
