"""`twiceproof claims`: the group. Each command has a file of its own."""

from __future__ import annotations

import click

from .claims_list import list_
from .claims_release import release
from .claims_settle import settle
from .claims_show import show
from .claims_sweep import sweep_

__all__ = ["claims"]


@click.group()
def claims() -> None:
    """Look at claims, settle and forget them."""


for _command in (list_, show, settle, release, sweep_):
    claims.add_command(_command)
