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
RUN is a run's id, or FLOW/KEY. A name that begins with a dash follows two.
"""


@click.command(epilog=EPILOG, short_help="Show one run, step by step, and the next move.")
@click.argument("run")
@target_options
@click.pass_obj
def show(target: Target, run: str) -> None:
    """Show everything about one run: its steps, what is known of each, and the next move."""
    with opened(target) as store:
        whole = block(look_at_run(store, named_run(target, store, run)))
    moves = moves_shape(target, whole.next)
    if target.json:
        show_json({**{name: getattr(whole, name) for name in whole.__struct_fields__}, "next": moves})
    else:
        show_run(whole, moves)
