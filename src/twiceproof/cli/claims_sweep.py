"""`twiceproof claims sweep`: forget what may be forgotten."""

from __future__ import annotations

import click
from msgspec import structs

from ..claims.retention import Swept, sweep
from ..drive import block
from .ledger import opened
from .output import show_json, show_text
from .progress import Progress
from .target import Target, target_options

__all__ = ["sweep_"]

EPILOG = """\b
Example:
  twiceproof claims sweep
Running apps sweep by themselves, a little at a time; this does all of it at once.
"""


@click.command("sweep", epilog=EPILOG)
@target_options
@click.pass_obj
def sweep_(target: Target) -> None:
    """Forget finished claims whose time to be kept is over, of all tenants."""
    total = Swept()
    with opened(target) as store, Progress("swept", quiet=target.json) as progress:
        while _count(swept := block(sweep(store))):
            total = Swept(*(a + b for a, b in zip(structs.astuple(total), structs.astuple(swept), strict=True)))
            progress.show(_count(total))
    if target.json:
        show_json(total)
    else:
        show_text(
            f"Forgot {total.forgotten} claims, dropped the results of {total.trimmed}, "
            f"removed {total.pieces} pieces beside them."
        )


def _count(swept: Swept) -> int:
    return sum(structs.astuple(swept))
