"""`twiceproof flows`: the group."""

from __future__ import annotations

import click

from .flows_list import list_

__all__ = ["flows"]


@click.group(short_help="Look at which versions of flows have runs under way.")
def flows() -> None:
    """Look at which flows have runs under way, and in which versions."""


flows.add_command(list_)
