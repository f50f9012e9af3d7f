"""`twiceproof runs show`: one run, its ledger as a timeline."""

from __future__ import annotations

import click

from ..drive import block
from ..flows.history.runs import look_at_run
from .ledger import opened
from .output import show_json
from .run_named import moves_shape, named_run
from .run_picture import show_run
from .target import Target, target_options

__all__ = ["show"]

EPILOG = """\b
Examples:
  twiceproof runs show sync_order/shop:order:17
  twiceproof runs show run_ZGVmYXVsdC9idXkvb3JkZXI6MQ --json
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
A name that begins with a dash follows two.
"""


@click.command(epilog=EPILOG, short_help="Show one run, step by step, and the next move.")
@click.argument("run")
@click.option("--all", "whole_batch", is_flag=True, help="Show every item of a batch, also all that are done.")
@target_options
@click.pass_obj
def show(target: Target, run: str, *, whole_batch: bool) -> None:
    """Show everything about one run: its steps, what is known of each, and the next move.

    Of a batch, the items that are not done come first, and most of the others are counted.
    """
    with opened(target) as store:
        whole = block(look_at_run(store, named_run(target, store, run)))
    moves = moves_shape(target, whole.next)
    if target.json:
        show_json({**{name: getattr(whole, name) for name in whole.__struct_fields__}, "next": moves})
    else:
        show_run(whole, moves, fold=not whole_batch)
