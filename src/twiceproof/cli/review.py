"""`twiceproof review`: the group. Each command has a file of its own."""

from __future__ import annotations

import click

from .review_list import list_
from .review_settle import settle
from .runs_show import show

__all__ = ["review"]


@click.group()
def review() -> None:
    """Look at runs that wait for a person, and settle them."""


for _command in (list_, show, settle):
    review.add_command(_command)
