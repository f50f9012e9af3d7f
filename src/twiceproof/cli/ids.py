"""`twiceproof ids`: the group."""

from __future__ import annotations

import click

from .ids_show import show

__all__ = ["ids"]


@click.group()
def ids() -> None:
    """From a run to the ids that it got outside, and back."""


ids.add_command(show)
