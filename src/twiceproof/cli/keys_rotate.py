"""`twiceproof keys rotate`."""

from __future__ import annotations

import click
from msgspec import structs

from ..flows.history.rotation import rotate as rotate_all
from .ledger import opened
from .output import show_json, show_text
from .progress import Progress
from .target import Target, target_options

__all__ = ["rotate"]

EPILOG = """\b
Examples:
  twiceproof keys rotate
  twiceproof keys rotate --json
"""


@click.command("rotate", epilog=EPILOG, short_help="Seal everything anew with the current key.")
@target_options
@click.pass_obj
def rotate(target: Target) -> None:
    """Seal everything anew with the current key, beside whoever is at work. What is held is left to its holder.

    Exit code 1 where something is left: say it again later. What does not open is named, and left as it is.
    """
    with opened(target) as store, Progress("sealing", quiet=target.json) as bar:
        done = rotate_all(store, bar.show)
    if target.json:
        show_json({**structs.asdict(done), "left": done.left})
    else:
        show_text(f"{done.sealed} sealed anew, {done.current} were already.")
        if done.left > done.shut:
            show_text(
                f"{done.left - done.shut} are held or were just written; say it again later: twiceproof keys rotate"
            )
        if done.shut:
            show_text(f"{done.shut} do not open, as told above; restore them from a backup.")
    if done.left:
        raise click.exceptions.Exit(1)
