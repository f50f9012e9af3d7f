"""`twiceproof runs retry`: what failed is tried again, what is done stays done."""

from __future__ import annotations

import click

from ..drive import block
from ..flows.history.again import retry_run
from .ledger import opened
from .output import show_json, show_text
from .run_named import named_run
from .target import Target, target_options

__all__ = ["retry"]

EPILOG = """\b
Example:
  twiceproof runs retry sync_order/shop:order:17
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
A worker goes on with it, or the next call.
A run that was cancelled or undone stays so: twiceproof runs fork RUN --key KEY
"""


@click.command(epilog=EPILOG)
@click.argument("run")
@target_options
@click.pass_obj
def retry(target: Target, run: str) -> None:
    """Queue a run that failed, or whose flow had changed under it."""
    with opened(target) as store:
        state = block(retry_run(store, named_run(target, store, run), target.words()))
    if target.json:
        show_json({"run": run, "state": state})
    else:
        show_text(f"{run} is {state}; a worker goes on with it, or the next call. What is done stays done.")
