"""`twiceproof approvals`: the group. Each command has a file of its own."""

from __future__ import annotations

import click

from .approvals_decide import approve, decide, reject
from .approvals_link import link
from .approvals_list import list_
from .approvals_show import show

__all__ = ["approvals"]


EPILOG = """\b
Examples:
  twiceproof approvals list                      what waits for somebody's word
  twiceproof approvals show charge_order/order:2  what it is about, and how to decide
"""


@click.group(epilog=EPILOG)
def approvals() -> None:
    """Look at what waits for somebody's word, and give it."""


for _command in (list_, show, approve, reject, decide, link):
    approvals.add_command(_command)
