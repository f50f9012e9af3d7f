"""`twiceproof claims sweep`: forget what may be forgotten."""

from __future__ import annotations

import os

import click
from msgspec import structs

from ..claims.retention import Swept, sweep
from ..clock import system_clock
from ..drive import block
from ..settings import from_environment
from .ledger import opened
from .output import show_json, show_text
from .progress import Progress
from .resources import clear_orphans
from .target import Target, target_options

__all__ = ["sweep_"]

EPILOG = """\b
Example:
  twiceproof claims sweep
  TWICEPROOF_RESOURCES=dir:///var/lib/shop twiceproof claims sweep --orphans
Running apps sweep by themselves, a little at a time; this does all of it at once.
"""


@click.command("sweep", epilog=EPILOG, short_help="Forget finished claims whose time is over.")
@target_options
@click.option(
    "--orphans",
    is_flag=True,
    help="Also remove large values that no run knows of, older than a day, from where TWICEPROOF_RESOURCES says.",
)
@click.pass_obj
def sweep_(target: Target, orphans: bool) -> None:
    """Forget finished claims whose time to be kept is over, of all tenants."""
    total, lost = Swept(), 0
    with opened(target) as store, Progress("swept", quiet=target.json) as progress:
        while _count(swept := block(sweep(store))):
            total = Swept(*(a + b for a, b in zip(structs.astuple(total), structs.astuple(swept), strict=True)))
            progress.show(_count(total))
        if orphans:
            lost = clear_orphans(store, from_environment(os.environ).resources, system_clock)
    if target.json:
        show_json({**structs.asdict(total), "orphans": lost} if orphans else total)
    else:
        show_text(
            f"Forgot {total.forgotten} claims, dropped the results of {total.trimmed}, "
            f"removed {total.pieces} pieces beside them{f' and {lost} orphans' if orphans else ''}."
        )


def _count(swept: Swept) -> int:
    return sum(structs.astuple(swept))
