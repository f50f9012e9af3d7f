"""`twiceproof runs`: the group. Each command has a file of its own."""

from __future__ import annotations

import click

from .runs_cancel import cancel
from .runs_fork import fork
from .runs_list import list_
from .runs_retry import retry
from .runs_show import show

__all__ = ["runs"]


@click.group()
def runs() -> None:
    """Look at runs; try again, cancel or fork them."""


for _command in (list_, show, retry, cancel, fork):
    runs.add_command(_command)
